job "sysbatch" {
  datacenters = ["dc1"]
  type        = "sysbatch"

  group "g" {
    reschedule {
      attempts  = 0
      unlimited = false
    }

    task "t" {
      driver = "exec"

      config {
        command = "uname"
        args    = ["-s"]
      }
    }
  }
}
