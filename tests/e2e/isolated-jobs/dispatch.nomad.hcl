# A parameterized job with a payload.
job "dispatch" {
  type = "batch"

  parameterized {
    payload       = "required"
    meta_required = ["who"]
  }

  group "g" {
    task "t" {
      driver = "exec"

      dispatch_payload {
        file = "input.txt"
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "echo ${NOMAD_META_who}: $(cat /local/input.txt)"]
      }
    }
  }
}
