//! Whether allocations can have networks of their own, and which programs drop their packets.
//!
//! In: the config, the instance if there is one. Out: a finding. Nothing is changed.

use herdlet_agent::networks::{
    AllocNetworks, Machine, NO_PERMISSION, Permission, bridge_of, dropping_chains,
};
use herdlet_api_types::{
    InstanceId,
    network::{BridgeView, ChainLock, DroppingChain, NetworkView},
};
use herdlet_config::Config;

use super::Finding;

const CHECK: &str = "networks";

pub(super) fn networks(config: &Config, instance: Option<&InstanceId>) -> Finding {
    if Permission::probe() == Permission::Missing {
        let why = NO_PERMISSION.split_once(':').map_or(NO_PERMISSION, |(why, _)| why);
        let message = format!("modes bridge, none and cni/NAME do not work: {why}");
        return Finding::warning(
            CHECK,
            message,
            "run the agent as root, or use the machine's network (mode host)",
        );
    }
    let bridge = instance.and_then(|instance| {
        let paths = config.paths(instance);
        let bridge = bridge_of(instance, &config.network, &paths);
        let networks = AllocNetworks::new(bridge, config.network.clone(), &paths, Machine::of_process());
        networks.views(&[]).into_iter().find_map(|view| match view {
            NetworkView::Bridge(bridge) => Some(bridge),
            NetworkView::Alloc(_) => None,
        })
    });
    finding(dropping_chains(), bridge.as_ref())
}

fn finding(dropping: Result<Vec<DroppingChain>, String>, bridge: Option<&BridgeView>) -> Finding {
    let dropping = match dropping {
        Ok(dropping) => dropping,
        Err(why) => {
            return Finding::warning(
                CHECK,
                format!("mode bridge does not work: failed to read the rules of nf_tables: {why}"),
                "load the module (modprobe nf_tables), or use a kernel with CONFIG_NF_TABLES",
            );
        }
    };
    let obstacle = bridge.and_then(|bridge| Some((bridge, bridge.obstacles().next()?)));
    // Before the first allocation, too: no agent can add its rules there.
    let locked = dropping.iter().find_map(|chain| Some((chain, chain.lock.as_ref()?)));
    if let Some((chain, lock)) = locked {
        return locked_finding(chain, lock, bridge.map_or("BRIDGE", |bridge| &bridge.name));
    }
    if let Some((bridge, chain)) = obstacle {
        let (name, title) = (&bridge.name, chain.title());
        let place = format!("{} {} {}", chain.family, chain.table, chain.rules_in);
        return Finding::warning(
            CHECK,
            format!(
                "mode bridge: {title} drops packets of the bridge {name}: the rules of the agent are not in {place}"
            ),
            format!(
                "the agent adds them within a minute while an allocation uses the bridge; if another program removes them, let it \
                 accept packets whose iifname or oifname is {name}"
            ),
        );
    }
    let titles: Vec<String> = dropping.iter().map(DroppingChain::title).collect();
    let message = match (titles.is_empty(), bridge) {
        (true, _) => {
            "mode bridge: nf_tables is there, and no other program drops forwarded packets".to_owned()
        }
        (false, None) => format!("mode bridge: the agent will let its packets pass {}", titles.join(", ")),
        (false, Some(_)) => {
            format!("mode bridge: rules of the agent let its packets pass {}", titles.join(", "))
        }
    };
    Finding::ok(CHECK, message)
}

fn locked_finding(chain: &DroppingChain, lock: &ChainLock, bridge: &str) -> Finding {
    let title = chain.title();
    let (why, remedy) = match lock {
        ChainLock::Owned { by } => (
            format!("only {} can change its table", by.as_deref().unwrap_or("the program that has made it")),
            format!(
                "let it accept packets of the bridge, with firewalld `firewall-cmd --permanent --zone=trusted --add-interface={bridge}`, or set \
                 `NftablesTableOwner=no` in /etc/firewalld/firewalld.conf: then the agent adds rules"
            ),
        ),
        ChainLock::Legacy => {
            let program = if chain.family == "ip6" { "ip6tables-legacy" } else { "iptables-legacy" };
            (
                format!("it is a chain of {program}, to which the agent can't add rules"),
                format!(
                    "`{program} -I {place} -i {bridge} -j ACCEPT` and `{program} -I {place} -o {bridge} -j ACCEPT`, or use iptables-nft",
                    place = chain.chain
                ),
            )
        }
    };
    Finding::warning(
        CHECK,
        format!("mode bridge: {title} drops forwarded packets that no rule of it accepts, and {why}"),
        remedy,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    fn chain(is_passed: bool) -> DroppingChain {
        DroppingChain {
            family: "ip".to_owned(),
            table: "filter".to_owned(),
            chain: "FORWARD".to_owned(),
            rules_in: "DOCKER-USER".to_owned(),
            is_passed,
            lock: None,
        }
    }

    #[test]
    fn chain_that_only_another_program_can_change_is_named_with_it() {
        let owned = |by: Option<&str>| ChainLock::Owned { by: by.map(str::to_owned) };
        for (lock, parts) in [
            (
                owned(Some("firewalld (process 812)")),
                ["only firewalld (process 812) can change", "NftablesTableOwner=no"],
            ),
            (owned(None), ["only the program that has made it", "--add-interface=BRIDGE"]),
            (
                ChainLock::Legacy,
                ["a chain of iptables-legacy", "iptables-legacy -I FORWARD -o BRIDGE -j ACCEPT"],
            ),
        ] {
            let found = finding(Ok(vec![DroppingChain { lock: Some(lock), ..chain(false) }]), None);
            assert_eq!(found.verdict, Verdict::Warning);
            let shown = format!("{} {}", found.message, found.hint.unwrap_or_default());
            assert!(parts.iter().all(|part| shown.contains(part)), "{shown}");
        }
    }

    #[test]
    fn chain_that_drops_packets_is_named_with_a_remedy() {
        let bridge = |is_passed| BridgeView {
            name: "herdlet".to_owned(),
            address: "172.26.80.1/20".to_owned(),
            address6: None,
            mtu: 1500,
            addresses_used: 0,
            addresses_max: 4093,
            table: "inet herdlet-x".to_owned(),
            problem: None,
            dropping_chains: vec![chain(is_passed)],
        };
        let drops = || Ok(vec![chain(false)]);
        let found = finding(drops(), Some(&bridge(false)));
        assert_eq!(found.verdict, Verdict::Warning);
        for part in ["ip filter FORWARD drops packets of the bridge herdlet", "not in ip filter DOCKER-USER"]
        {
            assert!(found.message.contains(part), "{found:?}");
        }
        assert!(found.hint.unwrap().contains("iifname or oifname is herdlet"));
        for (dropping, bridge, part) in [
            (drops(), Some(bridge(true)), "rules of the agent let its packets pass ip filter FORWARD"),
            (drops(), None, "the agent will let its packets pass ip filter FORWARD"),
            (Ok(Vec::new()), None, "no other program drops"),
        ] {
            let found = finding(dropping, bridge.as_ref());
            assert_eq!(found.verdict, Verdict::Ok);
            assert!(found.message.contains(part), "{found:?}");
        }
        let found = finding(Err("refused".to_owned()), None);
        assert_eq!(found.verdict, Verdict::Warning);
        assert!(found.message.ends_with("nf_tables: refused"), "{found:?}");
    }
}
