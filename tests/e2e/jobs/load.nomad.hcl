# A task that brings its image as an archive, on a machine without a registry.
variable "port" {
  type = number
}

job "load" {
  group "g" {
    task "t" {
      driver = "docker"

      artifact {
        source = "http://127.0.0.1:${var.port}/image.tar"

        options {
          archive = false
        }
      }

      config {
        image   = "herdlet-test/loaded:1"
        load    = "image.tar"
        command = "sleep"
        args    = ["100000"]
      }
    }
  }
}
