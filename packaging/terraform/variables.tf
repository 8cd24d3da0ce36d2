variable "application_name" {
  description = "applicationName of the properties file; names the tables."
  type        = string

  validation {
    condition     = can(regex("^[A-Za-z0-9_.-]{3,237}$", var.application_name))
    error_message = "3 to 237 letters, digits, dots, dashes and underlines."
  }
}

variable "stream_arn" {
  description = "ARN of the stream."
  type        = string
}

variable "retrieval_mode" {
  description = "retrievalMode of the properties file."
  type        = string
  default     = "FANOUT"

  validation {
    condition     = contains(["FANOUT", "POLLING"], var.retrieval_mode)
    error_message = "FANOUT or POLLING."
  }
}

variable "schema_registry" {
  description = "schemaRegistry of the properties file."
  type        = string
  default     = "OFF"

  validation {
    condition     = contains(["OFF", "DECODE"], var.schema_registry)
    error_message = "OFF or DECODE."
  }
}

variable "trusted_service" {
  description = "Who may take the role on, for instance ecs-tasks.amazonaws.com, ec2.amazonaws.com or pods.eks.amazonaws.com."
  type        = string
  default     = "ecs-tasks.amazonaws.com"
}
