# A periodic job, which also runs on demand.
job "backup" {
  datacenters = ["dc1"]
  type        = "batch"

  periodic {
    crons            = ["0 3 * * *"]
    time_zone        = "Europe/Berlin"
    prohibit_overlap = true
  }

  group "backup" {
    restart {
      attempts = 2
      interval = "10m"
      delay    = "15s"
      mode     = "fail"
    }

    task "tar" {
      driver = "exec"

      config {
        command = "tar"
        args    = ["-cvf", "/alloc/data/passwd.tar", "-C", "/etc", "passwd"]
      }
    }
  }
}
