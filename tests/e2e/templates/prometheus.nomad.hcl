# Configuration of a monitoring server, whose own templates use the usual delimiters.
job "prometheus" {
  datacenters = ["dc1"]
  type        = "service"

  group "monitoring" {
    count = 1

    restart {
      attempts = 2
      interval = "30m"
      delay    = "15s"
      mode     = "fail"
    }

    task "server" {
      driver = "raw_exec"

      template {
        change_mode = "noop"
        destination = "local/prometheus.yml"

        data = <<EOH
---
global:
  scrape_interval: 5s
  external_labels:
    job: {{ env "NOMAD_JOB_NAME" }}
    alloc: {{ env "NOMAD_SHORT_ALLOC_ID" }}

scrape_configs:
{{- range nomadServices }}
{{- if .Tags | contains "metrics" }}
  - job_name: {{ .Name | toJSON }}
    static_configs:
      - targets:
{{- range nomadService .Name }}
          - {{ printf "%s:%d" .Address .Port | toJSON }}
{{- end }}
{{- end }}
{{- end }}
EOH
      }

      template {
        change_mode     = "noop"
        destination     = "local/alerts.yml"
        left_delimiter  = "[["
        right_delimiter = "]]"

        data = <<EOH
groups:
  - name: [[ env "NOMAD_GROUP_NAME" ]]
    rules:
      - alert: Down
        expr: up == 0
        annotations:
          summary: "{{ $labels.instance }} is down for {{ $value }} minutes"
EOH
      }

      config {
        command = "/bin/sleep"
        args    = ["100000"]
      }
    }
  }
}
