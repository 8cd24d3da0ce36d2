"""What is shipped beside the code: image, service, manifests, packages, bill of materials."""
