bind_addr = "{{ GetInterfaceIP \"lo\" }}"
advertise {
  http = "{{ GetPrivateIP }}:{{ env \"PORT\" }}"
  rpc  = "{{ GetAllInterfaces | include \"network\" \"127.0.0.0/8\" | attr \"address\" }}"
}
