name = "a"
name = "b"
client { servers = ["a"] }
client { servers = ["a", "b"] }
