# Limits of memory and processor time: the task is killed for its memory.
job "limits" {
  type = "batch"

  group "g" {
    restart {
      attempts = 0
      mode     = "fail"
    }

    reschedule {
      attempts  = 0
      unlimited = false
    }

    task "greedy" {
      driver = "docker"

      config {
        image          = "herdlet-test/busybox:1"
        command        = "tail"
        args           = ["/dev/zero"]
        cpu_hard_limit = true
        cpu_cfs_period = 100000
        network_mode   = "none"
      }

      resources {
        cpu        = 500
        memory     = 16
        memory_max = 24
      }
    }
  }
}
