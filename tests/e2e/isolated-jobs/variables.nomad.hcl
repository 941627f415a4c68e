# Variables, locals and dynamic blocks of the language.
variable "release" {
  type    = string
  default = "1.0"
}

locals {
  name   = "variables"
  queues = ["mail", "images"]
}

job "variables" {
  name = local.name
  type = "batch"

  meta {
    release = var.release
  }

  dynamic "group" {
    for_each = local.queues
    labels   = [group.value]

    content {
      task "worker" {
        driver = "exec"

        config {
          command = "/bin/echo"
          args    = [format("%s of %s", group.value, upper(var.release)), "${NOMAD_META_release}"]
        }
      }
    }
  }
}
