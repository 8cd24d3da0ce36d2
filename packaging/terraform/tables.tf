# The tables of one application of kcl-daemon. The same as packaging/cloudformation. The daemon makes them by itself where it may;
# with this it need not be allowed to.

resource "aws_dynamodb_table" "leases" {
  name                        = var.application_name
  billing_mode                = "PAY_PER_REQUEST"
  deletion_protection_enabled = true
  hash_key                    = "leaseKey"

  attribute {
    name = "leaseKey"
    type = "S"
  }

  attribute {
    name = "leaseOwner"
    type = "S"
  }

  global_secondary_index {
    name            = "LeaseOwnerToLeaseKeyIndex"
    hash_key        = "leaseOwner"
    range_key       = "leaseKey"
    projection_type = "KEYS_ONLY"
  }

  point_in_time_recovery {
    enabled = true
  }
}

resource "aws_dynamodb_table" "worker_metrics" {
  name         = "${var.application_name}-WorkerMetricStats"
  billing_mode = "PAY_PER_REQUEST"
  hash_key     = "wid"

  attribute {
    name = "wid"
    type = "S"
  }

  point_in_time_recovery {
    enabled = true
  }
}

resource "aws_dynamodb_table" "coordinator" {
  name         = "${var.application_name}-CoordinatorState"
  billing_mode = "PAY_PER_REQUEST"
  hash_key     = "key"

  attribute {
    name = "key"
    type = "S"
  }

  point_in_time_recovery {
    enabled = true
  }
}
