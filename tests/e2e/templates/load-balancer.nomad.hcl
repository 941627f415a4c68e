# Configurations of two load balancers from the catalogue: all instances of a service, and the instances by tag.
job "load-balancer" {
  datacenters = ["*"]

  group "edge" {
    network {
      port "http" {}
    }

    task "haproxy" {
      driver = "raw_exec"

      template {
        destination   = "local/haproxy.cfg"
        change_mode   = "signal"
        change_signal = "SIGUSR1"
        splay         = "0s"

        wait {
          min = "0s"
          max = "1s"
        }

        data = <<-EOF
          defaults
            mode http

          frontend edge
            bind *:{{ env "NOMAD_PORT_http" }}
            default_backend app

          backend app
            balance roundrobin
          {{- range $index, $instance := nomadService "app" }}
            server app{{ $index }} {{ $instance.Address }}:{{ $instance.Port }} check
          {{- else }}
            # no instances
          {{- end }}
        EOF
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "trap 'echo reloaded >> local/log' USR1; while :; do sleep 0.05; done"]
      }

      kill_timeout = "1s"
    }

    task "nginx" {
      driver = "raw_exec"

      template {
        destination   = "local/upstreams.conf"
        change_mode   = "signal"
        change_signal = "SIGHUP"
        splay         = "0s"

        wait {
          min = "0s"
          max = "1s"
        }

        data = <<EOF
{{ range $tag, $instances := nomadService "app" | byTag -}}
upstream app_{{ $tag | toLower | replaceAll "-" "_" }} {
{{- range $instances }}
  server {{ .Address }}:{{ .Port }};
{{- end }}
}
{{ end -}}
{{- if not (nomadService "app") }}
upstream app_none { server 127.0.0.1:65535; }
{{ end -}}
EOF
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "trap 'echo reloaded >> local/log' HUP; while :; do sleep 0.05; done"]
      }

      kill_timeout = "1s"
    }
  }
}
