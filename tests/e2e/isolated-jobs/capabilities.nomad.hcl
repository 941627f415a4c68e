# Rights: one capability more, one less, and a user by number.
job "capabilities" {
  type = "batch"

  group "g" {
    task "more" {
      driver = "exec"

      config {
        command  = "/bin/sh"
        args     = ["-c", "grep CapEff /proc/self/status"]
        cap_add  = ["net_raw"]
        cap_drop = ["ALL"]
      }
    }

    task "user" {
      driver = "exec"
      user   = "12345:23456"

      config {
        command  = "/bin/sh"
        args     = ["-c", "id -u; id -G; pwd"]
        work_dir = "/local"
        cap_drop = ["all"]
      }
    }
  }
}
