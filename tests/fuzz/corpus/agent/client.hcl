# /etc/nomad.d/client.hcl
region     = "eu"
datacenter = "fra1"
name       = "edge-1"
data_dir   = "/opt/nomad"
bind_addr  = "10.0.0.7"
log_level  = "WARN"
log_json   = true
leave_on_terminate = true
disable_update_check = true

addresses { http = "127.0.0.1" }
ports     { http = 5646 rpc = 5647 }
advertise { http = "10.0.0.7" }

server { enabled = false  bootstrap_expect = 3 }

client {
  enabled    = true
  servers    = ["10.0.0.1", "10.0.0.2:4747"]
  node_class = "edge"
  node_pool  = "gpu"

  server_join {
    retry_join     = ["nomad.example.org", "provider=aws tag_key=x"]
    retry_interval = "15s"
    retry_max      = 3
  }
  meta {
    "rack.row" = "17"
    size = 3
  }
  options = {
    "driver.allowlist" = "raw_exec,exec"
    "fingerprint.denylist" = "env_aws, consul"
  }
  host_volume "certs" {
    path      = "/etc/ssl/certs"
    read_only = true
  }
  host_volume "data" { path = "/data" }
  host_network "private" {
    cidr = "10.0.0.0/8,192.168.0.0/16"
    reserved_ports = "22,80"
  }
  reserved {
    cpu            = 500
    memory         = 512
    disk           = 1024
    reserved_ports = "22,8500-8600"
  }
  network_interface        = "eth0"
  network_speed            = 100
  preferred_address_family = "ipv6"
  cpu_total_compute        = "8000"
  disk_free_mb             = 1000
  disk_total_mb            = 5000
  min_dynamic_port         = 25000
  max_kill_timeout         = "1m"
  gc_interval              = "30s"
  gc_disk_usage_threshold  = 80.5
  gc_max_allocs            = 10
  cgroup_parent            = "nomad.slice"
  node_max_allocs          = 7
  no_host_uuid             = true
  drain_on_shutdown {
    ignore_system_jobs = true
  }
}

plugin "raw_exec" { config { enabled = true } }
consul { address = "127.0.0.1:8501" ssl = true token = "s3cret" client_auto_join = false }
acl { enabled = true token_ttl = "1m" }
tls {
  http = true
  rpc  = true
  ca_file   = "/tls/ca.pem"
  cert_file = "/tls/client.pem"
  key_file  = "/tls/client-key.pem"
  verify_server_hostname = true
  verify_https_client    = true
}
telemetry { publish_allocation_metrics = true prometheus_metrics = true }
