# A batch job that works in a directory of the allocation and ends.
job "batch" {
  type = "batch"

  group "work" {
    restart {
      attempts = 0
      mode     = "fail"
    }

    task "report" {
      driver = "docker"

      config {
        image    = "herdlet-test/busybox:1"
        command  = "sh"
        args     = ["-c", "pwd; echo $GREETING from $NOMAD_TASK_NAME; echo result > ${NOMAD_ALLOC_DIR}/data/result; echo done >&2"]
        work_dir = "/local"
      }

      env {
        GREETING = "hello"
      }
    }
  }
}
