# A parameterized job: each dispatch is a container that reads its payload.
job "dispatch" {
  type = "batch"

  parameterized {
    payload       = "required"
    meta_required = ["who"]
  }

  group "g" {
    task "t" {
      driver = "docker"

      dispatch_payload {
        file = "input.txt"
      }

      config {
        image   = "herdlet-test/busybox:1"
        command = "sh"
        args    = ["-c", "echo ${NOMAD_META_who}: $(cat /local/input.txt)"]
      }
    }
  }
}
