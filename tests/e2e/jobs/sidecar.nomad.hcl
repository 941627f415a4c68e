# Tasks of one group that share the allocation's directory: one runs before, one beside the main task.
job "sidecar" {
  type = "batch"

  group "g" {
    task "prepare" {
      driver = "docker"

      lifecycle {
        hook = "prestart"
      }

      config {
        image = "herdlet-test/busybox:1"
        args  = ["sh", "-c", "echo prepared > /alloc/data/state"]
      }
    }

    task "proxy" {
      driver = "docker"

      lifecycle {
        hook    = "prestart"
        sidecar = true
      }

      config {
        image      = "herdlet-test/busybox:1"
        entrypoint = ["tail"]
        args       = ["-f", "/dev/null"]
        init       = true
      }
    }

    task "main" {
      driver = "docker"
      leader = true

      config {
        image = "herdlet-test/busybox:1"
        args  = ["sh", "-c", "cat /alloc/data/state; ls /secrets; echo main"]
      }
    }
  }
}
