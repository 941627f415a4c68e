//! Attempts to reach a service that is published for the machine alone.

use herdlet_e2e::{
    agent::{Agent, Setup},
    http::{self, Peer},
    ports, wait,
};

use crate::{
    common::{is_root, job, sleeper},
    published::{Mode, Shop},
};

#[test]
fn a_task_in_a_network_of_its_own_does_not_reach_what_is_published_for_the_machine() {
    if !is_root() {
        return;
    }
    let [port] = ports::free();
    let mut agent = Agent::start_with(Setup::default().config(ports::for_tasks()));
    for (name, mode) in [("inside", Mode::Bridge), ("machine", Mode::Host)] {
        let victim = Shop { name, port, count: 1, mode, version: 1, shutdown_delay: "0s" };
        agent.apply_and_wait(&victim.manifest());
        agent.apply_and_wait(&job("bold", "service", "network: {mode: bridge}\n", &[sleeper("t", "")]));
        wait::until_true("the machine itself reaches it", || http::get(&Peer::Port(port), "/").is_some());
        // The route to the machine, and 127.0.0.1 by way of it.
        let script = format!(
            "import socket, struct, subprocess\n\
             route = [line.split() for line in open('/proc/net/route')][1:]\n\
             machine = [socket.inet_ntoa(struct.pack('=L', int(one[2], 16))) for one in route if one[1] == '00000000'][0]\n\
             open('/proc/sys/net/ipv4/conf/eth0/route_localnet', 'w').write('1')\n\
             subprocess.run('ip address del 127.0.0.1/8 dev lo; ip route add 127.0.0.1/32 via ' + machine, shell=True)\n\
             for address in [machine, '127.0.0.1']:\n\
             \x20   try:\n\
             \x20       socket.create_connection((address, {port}), 2)\n\
             \x20       print('reached', address)\n\
             \x20   except OSError:\n\
             \x20       pass\n"
        );
        let tried = agent.cli(&["exec", "bold", "--task", "t", "--", "python3", "-c", &script]);
        assert_eq!(tried.success().stdout, "", "{mode:?}");
        for name in [name, "bold"] {
            agent.cli(&["delete", name, "--wait"]).success();
        }
    }
    agent.finish();
}
