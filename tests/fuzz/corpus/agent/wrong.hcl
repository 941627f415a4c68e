client = "x"
ports = [1, 2, { http = 1 }]
addresses "a" "b" "c" { http = "x" }
data_dir = { a = 1 }
client { server_join { retry_join = "a" retry_max = "many" } drain_on_shutdown { deadline = "1x" } }
clint { enabled = true }
