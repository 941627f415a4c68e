name = <<EOF
of several
 lines
EOF
datacenter = <<-X
    indented
    X
client { meta { "a" = <<Y
$${x} "quoted" \n
Y
} }
