# An environment from all items of variables, and single ones.
job "env-file" {
  group "app" {
    task "app" {
      driver = "raw_exec"

      template {
        destination = "secrets/file.env"
        env         = true
        splay       = "0s"
        change_mode = "restart"

        wait {
          min = "0s"
          max = "0s"
        }

        data = <<EOH
# rendered for {{ env "NOMAD_TASK_NAME" }}
{{ with nomadVar "nomad/jobs/env-file" -}}
{{ range .Tuples -}}
{{ .K | toUpper }}={{ .V | toJSON }}
{{ end -}}
{{ end -}}
{{ range $path := nomadVarListSafe "nomad/jobs/env-file" -}}
{{ if ne $path.Path "nomad/jobs/env-file" -}}
{{ with nomadVar $path.Path -}}
{{ range $key, $value := . -}}
{{ $path.Path | replaceAll "nomad/jobs/env-file/" "" | replaceAll "/" "_" | toUpper }}_{{ $key | toUpper }}={{ $value }}
{{ end -}}
{{ end -}}
{{ end -}}
{{ end -}}
DATABASE_URL="postgres://{{ with nomadVar "nomad/jobs/env-file" }}{{ .user }}:{{ .password }}{{ end }}@{{ env "NOMAD_ALLOC_INDEX" }}.db/app"
EOH
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "echo \"$DATABASE_URL $PASSWORD $APP_LEVEL\" >> local/log; exec sleep 100000"]
      }
    }
  }
}
