# A check that runs in the task.
job "script-check" {
  group "g" {
    service {
      name     = "worker"
      provider = "nomad"
      task     = "t"

      check {
        name     = "fresh"
        type     = "script"
        task     = "t"
        command  = "/bin/sh"
        args     = ["-c", "test -f /local/ready"]
        interval = "1s"
        timeout  = "30s"

        check_restart {
          limit = 50
          grace = "90s"
        }
      }
    }

    task "t" {
      driver = "exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "touch /local/ready; echo ready; exec sleep infinity"]
      }
    }
  }
}
