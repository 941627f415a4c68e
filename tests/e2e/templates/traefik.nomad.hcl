# A proxy's TOML files, with a password from a variable that may be missing.
job "traefik" {
  type = "system"

  group "traefik" {
    network {
      port "web" {}
      port "admin" {}
    }

    task "traefik" {
      driver = "raw_exec"

      env {
        LOG_LEVEL = "INFO"
      }

      template {
        destination = "local/traefik.toml"
        data        = <<EOF
[entryPoints]
    [entryPoints.web]
    address = ":{{ env "NOMAD_PORT_web" }}"
    [entryPoints.traefik]
    address = ":{{ env "NOMAD_PORT_admin" }}"

[log]
    level = "{{ env "LOG_LEVEL" | toUpper }}"

[api]
    dashboard = true
    insecure  = {{ if nomadVarExists "nomad/jobs/traefik" }}false{{ else }}true{{ end }}
EOF
      }

      template {
        destination = "${NOMAD_SECRETS_DIR}/users.toml"
        perms       = "0600"
        change_mode = "noop"

        wait {
          min = "0s"
          max = "0s"
        }

        data = <<EOF
{{ if nomadVarExists "nomad/jobs/traefik" -}}
{{ with nomadVar "nomad/jobs/traefik" -}}
[http.middlewares.auth.basicAuth]
  users = [{{ range $index, $user := .users.Value | split "," }}{{ if $index }}, {{ end }}{{ $user | toJSON }}{{ end }}]
{{ end -}}
{{ else -}}
# no users
{{ end -}}
EOF
      }

      config {
        command = "/bin/sleep"
        args    = ["100000"]
      }
    }
  }
}
