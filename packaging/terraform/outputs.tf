output "role_arn" {
  description = "For the task definition, the instance profile or the pod identity."
  value       = aws_iam_role.daemon.arn
}

output "policy_arn" {
  description = "To attach to a role of your own."
  value       = aws_iam_policy.daemon.arn
}

output "table_names" {
  description = "The lease table, that of the workers' reports and that of the leader."
  value = [
    aws_dynamodb_table.leases.name,
    aws_dynamodb_table.worker_metrics.name,
    aws_dynamodb_table.coordinator.name,
  ]
}
