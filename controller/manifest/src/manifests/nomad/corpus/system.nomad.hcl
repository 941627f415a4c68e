# Something that runs once on each machine.
job "exporter" {
  type      = "system"
  node_pool = "all"

  constraint {
    attribute = "${attr.kernel.name}"
    value     = "linux"
  }

  constraint {
    attribute = "${attr.kernel.version}"
    version   = ">= 5.10, < 8"
  }

  group "metrics" {
    count = 1

    constraint {
      attribute    = "${attr.os.signals}"
      set_contains = "SIGTERM,SIGINT"
    }

    constraint {
      operator = "is_set"
      attribute = "${meta.rack}"
    }

    task "serve" {
      constraint {
        attribute = "${attr.cpu.arch}"
        operator  = "regexp"
        value     = "^(amd|arm)64$"
      }

      driver = "raw_exec"

      config {
        command = "/bin/sleep"
        args    = ["infinity"]
      }
    }
  }
}
