# A monitor that sees the processes of the machine.
job "host-modes" {
  type = "batch"

  group "g" {
    task "t" {
      driver = "exec"

      config {
        command  = "/bin/sh"
        args     = ["-c", "test $$ -ne 1 && echo not the first; readlink /proc/self/ns/ipc"]
        pid_mode = "host"
        ipc_mode = "host"
      }
    }
  }
}
