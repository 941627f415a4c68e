# A batch job whose task ends with a code, after one restart.
job "failing" {
  type = "batch"

  group "g" {
    restart {
      attempts = 1
      interval = "10m"
      delay    = "100ms"
      mode     = "fail"
    }

    reschedule {
      attempts  = 0
      unlimited = false
    }

    task "t" {
      driver = "docker"

      config {
        image   = "herdlet-test/busybox:1"
        command = "sh"
        args    = ["-c", "echo attempt; exit 42"]
      }
    }
  }
}
