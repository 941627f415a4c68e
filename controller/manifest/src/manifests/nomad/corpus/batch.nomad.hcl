# A batch job that says little, with values of its own.
variable "command" {
  type    = string
  default = "/bin/true"
}

variable "arguments" {
  type    = list(string)
  default = ["-x", "1"]
}

locals {
  name = "${upper("night")}-${length(var.arguments)}"
}

job "nightly" {
  type        = "batch"
  namespace   = "tools"
  region      = "eu"
  datacenters = ["dc1", "dc2"]
  priority    = 80
  name        = local.name

  meta {
    owner = "ops"
    retry = 3
  }

  periodic {
    cron             = "30 3 * * *"
    time_zone        = "Europe/Berlin"
    prohibit_overlap = true
  }

  group "work" {
    restart {
      attempts = 5
      interval = "1h"
      delay    = 30000000000
      mode     = "delay"
    }

    task "run" {
      driver = "raw_exec"

      config {
        command = var.command
        args    = concat(var.arguments, ["${NOMAD_ALLOC_INDEX}"])
      }

      env {
        STAGE = "test-${NOMAD_TASK_NAME}"
        LEVEL = 2
      }
    }
  }
}
