/* Every block that is built. */
locals {
  ports = { http = 8080, admin = 9000 }
}

job "shop" {
  meta = { "a-b" = "c" }

  spread {
    attribute = "${node.datacenter}"
    weight    = 80
    target "dc1" {
      percent = 70
    }
    target "dc2" {
      percent = 30
    }
  }

  update {
    max_parallel      = 2
    min_healthy_time  = "5s"
    healthy_deadline  = "2m"
    progress_deadline = "5m"
    health_check      = "task_states"
    stagger           = "10s"
  }

  group "web" {
    count          = "1"
    shutdown_delay = "3s"

    spread {
      attribute = "${meta.rack}"
    }

    reschedule {
      attempts       = 3
      interval       = "1h"
      delay          = "10s"
      delay_function = "fibonacci"
      max_delay      = "5m"
      unlimited      = false
    }

    scaling {
      enabled = false
      min     = 0
      max     = 4
    }

    network {
      mode = "host"
      dynamic "port" {
        for_each = local.ports
        labels   = [port.key]
        content {
          to     = port.key == "http" ? port.value : null
          static = port.key == "admin" ? port.value : null
        }
      }
    }

    volume "data" {
      type      = "host"
      source    = "shopdata"
      read_only = false
      per_alloc = true
    }

    ephemeral_disk {
      size = 500
    }

    service {
      name     = "shop"
      provider = "consul"
      port     = "http"
      tags     = ["v2", "${NOMAD_ALLOC_INDEX}"]
      canary_tags = ["next"]
      enable_tag_override = true
      meta {
        tier = "front"
      }
      canary_meta {
        a-b = "c"
      }
      tagged_addresses {
        wan = "203.0.113.7"
      }
      weights {
        passing = 10
        warning = 2
      }
      on_update = "ignore_warnings"
      task      = "httpd"
      check_restart {
        limit           = 3
        grace           = "90s"
        ignore_warnings = true
      }

      check {
        name     = "alive"
        type     = "http"
        path     = "/health"
        method   = "POST"
        protocol = "https"
        interval = "10s"
        timeout  = "2s"
        body     = "ping"
        header {
          Accept = ["text/plain"]
        }
        tls_skip_verify = true
        tls_server_name = "shop.example.org"
        initial_status  = "warning"
        success_before_passing   = 2
        failures_before_critical = 3
        failures_before_warning  = 2
        notes                    = "asks the shop itself"
        check_restart {
          limit = 5
        }
      }

      check {
        name            = "serving"
        type            = "grpc"
        port            = "admin"
        address_mode    = "host"
        grpc_service    = "shop.Cart"
        grpc_use_tls    = true
        interval        = "10s"
        timeout         = "2s"
      }

      check {
        name      = "stock"
        type      = "script"
        command   = "/bin/sh"
        args      = ["-c", "test -s stock"]
        interval  = "30s"
        timeout   = "5s"
        on_update = "require_healthy"
      }
    }

    service {
      name = "elsewhere"
      port = "admin"

      check {
        type     = "tcp"
        interval = "10s"
        timeout  = "2s"
      }
    }

    task "warm" {
      driver = "raw_exec"
      lifecycle {
        hook    = "prestart"
        sidecar = false
      }
      config {
        command = "/bin/true"
      }
    }

    task "httpd" {
      driver         = "raw_exec"
      user           = "nobody"
      leader         = true
      kill_signal    = "SIGTERM"
      kill_timeout   = "20s"
      shutdown_delay = "1s"

      config {
        command       = "/usr/bin/httpd"
        args          = ["-c", <<-EOT
          listen ${NOMAD_PORT_http}
          stage ${local.ports.admin}
        EOT
        ]
        work_dir      = "local"
        oom_score_adj = 10
      }

      restart {
        attempts         = 0
        render_templates = true
        mode     = "fail"
      }

      artifact {
        source = "https://dl.example.org/httpd-${attr.cpu.arch}.tgz"
        options {
          checksum = "sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
        }
      }

      artifact {
        source      = "http://dl.example.org/site.conf"
        mode        = "file"
        destination = "local/etc/site.conf"
        insecure    = true
        chown       = true
        headers {
          X-Token = "${NOMAD_META_token}"
        }
      }

      template {
        data          = <<EOH
listen {{ env "NOMAD_PORT_http" }}
home $${NOMAD_TASK_DIR}/${attr.unique.hostname}
{{ with nomadVar "nomad/jobs/shop" }}secret {{ .secret }}
{{ end }}
EOH
        destination   = "secrets/httpd.conf"
        perms         = "0640"
        uid           = 1000
        gid           = 100
        change_mode   = "signal"
        change_signal = "sigusr1"
        splay         = "1s"
        vault_grace   = "0s"
        wait {
          min = "2s"
          max = "10s"
        }
        error_on_missing_key = true
      }

      template {
        data            = <<-EOH
          NAME=[[ env "NOMAD_JOB_NAME" ]]
            NEXT=2
          EOH
        destination     = "${NOMAD_SECRETS_DIR}/shop.env"
        env             = true
        left_delimiter  = "[["
        right_delimiter = "]]"
      }

      template {
        source      = "local/site.tmpl"
        destination = "/local/site.html"
        change_mode = "script"
        uid         = -1
        change_script {
          command             = "/bin/sh"
          args                = ["-c", "kill -HUP 1"]
          timeout             = "10s"
          fail_on_error       = true
          run_on_first_render = true
        }
        wait {
          min = "3s"
        }
      }

      template {
        data        = "plain"
        destination = "local/plain"
        change_mode = "noop"
      }

      volume_mount {
        volume      = "data"
        destination = "local/data"
        read_only   = true
      }

      identity {
        name        = "vault"
        aud         = ["vault.example.org"]
        ttl         = "1h"
        file        = true
        change_mode = "restart"
      }

      resources {
        cpu        = 500
        memory     = 256
        memory_max = 512
      }

      logs {
        max_files     = 3
        max_file_size = 5
        disabled      = false
      }

      service {
        name         = "debug"
        provider     = "consul"
        address_mode = "host"
        port         = "admin"
      }
    }
  }
}
