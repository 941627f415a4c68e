job "probe" {
  @JobSpec
  group "one" {
    @GroupSpec
    scaling {
      @Scaling
      max = 3
    }
    vault {
      @Vault
      role = "web"
    }
    ephemeral_disk {
      sticky = true
    }
    network {
      @Network
      port "http" {
        @Port
      }
    }
    volume "data" {
      @VolumeRequest
      type   = "host"
      source = "data"
    }
    service {
      @Service
      name = "probe"
      port = "http"
      check {
        @Check
        type     = "tcp"
        interval = "10s"
        timeout  = "2s"
      }
    }
    task "main" {
      @TaskSpec
      driver = "mock"
      resources {
        @Resources
      }
      logs {
        @Logs
      }
      identity {
        @Identity
        name = "other"
        aud  = ["x"]
        file = true
      }
      template {
        @Template
        data        = "x"
        destination = "local/x"
      }
      volume_mount {
        @VolumeMount
        volume      = "data"
        destination = "local/data"
      }
    }
  }
}
