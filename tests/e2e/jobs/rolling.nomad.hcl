# Two instances that an update replaces one by one.
variable "release" {
  type    = string
  default = "1"
}

job "rolling" {
  group "g" {
    count = 2

    update {
      max_parallel      = 1
      min_healthy_time  = "100ms"
      healthy_deadline  = "5m"
      progress_deadline = "10m"
      auto_revert       = true
    }

    task "t" {
      driver       = "docker"
      kill_timeout = "1s"

      config {
        image   = "herdlet-test/busybox:1"
        command = "sh"
        args    = ["-c", "trap 'exit 0' INT TERM; echo release ${var.release}; sleep 100000 & wait"]
      }
    }
  }
}
