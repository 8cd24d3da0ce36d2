"""Pure rules about failing children: which record is to blame, and what is kept of it."""
