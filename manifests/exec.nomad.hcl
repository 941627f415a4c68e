# The same as a job file of Nomad, as a service:
#
#   herdlet apply -f manifests/exec.nomad.hcl
#   herdlet exec exec-hcl -- ps
#
job "exec-hcl" {
  type = "service"

  group "exec" {
    task "wait" {
      driver = "exec"

      # The first process of a pid namespace ignores signals that it does not handle: `init` passes them on.
      config {
        command = "sleep"
        args    = ["infinity"]
        init    = true
      }

      # What is in the task's directory is in its root, also below directories of the machine.
      template {
        destination = "etc/exec.conf"
        data        = "written for {{ env \"NOMAD_ALLOC_NAME\" }}\n"
      }
    }
  }
}
