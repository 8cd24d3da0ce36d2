# What a daemon needs where its tables exist: `kcl-daemon iam-policy` without the rights to make and alter them.

data "aws_iam_policy_document" "tables" {
  statement {
    sid = "Tables"
    actions = [
      "dynamodb:DescribeTable",
      "dynamodb:GetItem",
      "dynamodb:PutItem",
      "dynamodb:UpdateItem",
      "dynamodb:DeleteItem",
      "dynamodb:Scan",
    ]
    resources = [
      aws_dynamodb_table.leases.arn,
      aws_dynamodb_table.worker_metrics.arn,
      aws_dynamodb_table.coordinator.arn,
    ]
  }

  statement {
    sid       = "FindOwnLeases"
    actions   = ["dynamodb:Query"]
    resources = ["${aws_dynamodb_table.leases.arn}/index/*"]
  }

  # CloudWatch knows no resources; the namespace is the application's name (metricsNamespace).
  statement {
    sid       = "Metrics"
    actions   = ["cloudwatch:PutMetricData"]
    resources = ["*"]

    condition {
      test     = "StringEquals"
      variable = "cloudwatch:namespace"
      values   = [var.application_name]
    }
  }
}

data "aws_iam_policy_document" "polling" {
  statement {
    sid = "ReadStream"
    actions = [
      "kinesis:DescribeStreamSummary",
      "kinesis:ListShards",
      "kinesis:GetShardIterator",
      "kinesis:GetRecords",
    ]
    resources = [var.stream_arn]
  }
}

data "aws_iam_policy_document" "fan_out" {
  statement {
    sid = "ReadStream"
    actions = [
      "kinesis:DescribeStreamSummary",
      "kinesis:ListShards",
      "kinesis:RegisterStreamConsumer",
    ]
    resources = [var.stream_arn]
  }

  statement {
    sid     = "FindConsumer"
    actions = ["kinesis:DescribeStreamConsumer"]
    resources = [
      var.stream_arn,
      "${var.stream_arn}/consumer/${var.application_name}:*",
    ]
  }

  statement {
    sid       = "Subscribe"
    actions   = ["kinesis:SubscribeToShard"]
    resources = ["${var.stream_arn}/consumer/${var.application_name}:*"]
  }
}

data "aws_iam_policy_document" "daemon" {
  source_policy_documents = [
    data.aws_iam_policy_document.tables.json,
    var.retrieval_mode == "FANOUT" ? data.aws_iam_policy_document.fan_out.json : data.aws_iam_policy_document.polling.json,
  ]

  # A version of a schema is asked for by its id, which names no resource.
  dynamic "statement" {
    for_each = var.schema_registry == "DECODE" ? ["ReadSchemas"] : []

    content {
      sid       = statement.value
      actions   = ["glue:GetSchemaVersion"]
      resources = ["*"]
    }
  }
}

data "aws_iam_policy_document" "trust" {
  statement {
    actions = ["sts:AssumeRole", "sts:TagSession"]

    principals {
      type        = "Service"
      identifiers = [var.trusted_service]
    }
  }
}

resource "aws_iam_policy" "daemon" {
  name_prefix = "kcl-daemon-"
  description = "What kcl-daemon needs to consume one stream."
  policy      = data.aws_iam_policy_document.daemon.json
}

resource "aws_iam_role" "daemon" {
  name_prefix        = "kcl-daemon-"
  description        = "kcl-daemon, application ${var.application_name}"
  assume_role_policy = data.aws_iam_policy_document.trust.json
}

resource "aws_iam_role_policy_attachment" "daemon" {
  role       = aws_iam_role.daemon.name
  policy_arn = aws_iam_policy.daemon.arn
}
