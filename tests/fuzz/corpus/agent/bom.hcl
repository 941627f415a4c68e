region = "a"
datacenter = "b"name = "c"
