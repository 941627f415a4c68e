plugin "raw_exec" { config { enabled = true } }
plugin "docker" { config { allow_privileged = true } }
client { enabled = true }
client { meta { a = "1" } }
client { meta { b = "2" } host_network "x" { interface = "lo" } }
telemetry { publish_allocation_metrics = true prometheus_metrics = true }
consul { address = "127.0.0.1:8500" token = "t" auto_advertise = true }
vault { enabled = true }
