# The smallest job: one program, its arguments, an environment.
job "hello" {
  datacenters = ["dc1"]
  type        = "batch"

  group "hello" {
    task "say" {
      driver = "exec"

      env {
        GREETING = "hello from ${NOMAD_JOB_NAME}"
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "echo $GREETING as $(id -un) in $(pwd)"]
      }
    }
  }
}
