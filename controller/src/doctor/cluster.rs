//! Checks of a node before it joins a cluster: servers that answer for its region, and a task driver to offer.
//!
//! In: the config. Out: findings; none without a cluster. The node is not registered.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use herdlet_base::error::in_full;
use herdlet_config::{Cluster, Config};
use herdlet_node::servers;
use herdlet_nomad::wire::QueryOptions;
use herdlet_rpc::{
    address::Address,
    connect::Network,
    error::CallError,
    pool::{Chance, Pool},
    serve::Unserved,
    tls::ClientTls,
};
use herdlet_services::catalog::ConsulReader;

use super::Finding;

const ANSWER_MAX: Duration = Duration::from_secs(5);
/// At most this many errors of servers are listed.
const TOLD_MAX: usize = 5;

/// Contacts each configured server.
pub(super) async fn cluster(config: &Config) -> Vec<Finding> {
    let Some(cluster) = &config.cluster else { return Vec::new() };
    let mut findings = vec![reach(config, cluster).await];
    let offers_any = config.drivers.offers_servers_any()
        || super::engines::has_any(config)
        || super::machine::isolates(config);
    if !offers_any {
        findings.push(Finding::warning(
            "drivers",
            "the node offers no task driver, so servers place nothing on it",
            "run the agent as root for the driver exec, or enable raw_exec with --raw-exec",
        ));
    }
    findings
}

async fn reach(config: &Config, cluster: &Cluster) -> Finding {
    let region = &config.region;
    let tls = match cluster.tls.as_ref().map(|files| servers::tls(files, region)).transpose() {
        Ok(tls) => tls,
        Err(error) => {
            let hint = "see `cluster.tls` of the config; an agent would not start";
            return Finding::failure("servers", format!("failed to {}", in_full(&error)), hint);
        }
    };
    let consul =
        crate::consul_config::resolve_default(config).ok().and_then(|consul| ConsulReader::new(&consul).ok());
    let found = servers::find(cluster, consul.as_ref()).await;
    let answers = join_all(found.iter().map(|server| ask(server, region, tls.clone()))).await;
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    for (server, answer) in found.iter().zip(answers) {
        match answer {
            Ok(()) => good.push(server.to_string()),
            Err(why) => bad.push(why),
        }
    }
    let left_out = bad.len().saturating_sub(TOLD_MAX);
    bad.truncate(TOLD_MAX);
    if left_out > 0 {
        bad.push(format!("{left_out} more fail"));
    }
    let hint = "servers listen on 4647 for nodes, answer for their own --region, and need a leader; `cluster.tls` must match theirs";
    match (&good[..], &bad[..]) {
        ([], []) => Finding::failure("servers", "no server was found", "name servers with --servers"),
        ([], bad) => Finding::failure("servers", bad.join("; "), hint),
        (good, []) => Finding::ok("servers", format!("{} of region {region} answer", good.join(", "))),
        (good, bad) => {
            let message = format!("{} of region {region} answer; {}", good.join(", "), bad.join("; "));
            Finding::warning("servers", message, hint)
        }
    }
}

/// Whether this server, or one that it knows, can answer for the region.
async fn ask(server: &Address, region: &str, tls: Option<ClientTls>) -> Result<(), String> {
    let only = Vec::from([server.clone()]);
    let pool = Pool::new(Arc::new(Unserved), region.to_owned(), only, Network::new(tls), Chance::new());
    let question = QueryOptions { region: region.to_owned(), ..QueryOptions::default() };
    match pool.once("Status.Leader", &question, ANSWER_MAX).await {
        Ok(answer) => match answer.decode::<String>() {
            Ok(leader) if leader.is_empty() => Err(format!("{server} has no leader")),
            Ok(_) => Ok(()),
            Err(error) => Err(format!("{server}: failed to {}", in_full(&error))),
        },
        Err(CallError::Server(error)) => Err(format!("{server} answers with an error: {error}")),
        Err(CallError::Late(_)) => Err(format!("{server} does not answer within {} s", ANSWER_MAX.as_secs())),
        // The error names the server.
        Err(CallError::Unreachable(error)) => Err(format!("failed to {}", in_full(&*error))),
        Err(error) => Err(format!("{server}: failed to {}", in_full(&error))),
    }
}

#[cfg(test)]
mod tests {
    use herdlet_nomad_server::{Cluster as StandIn, Settings};

    use herdlet_api_types::driver::EXEC;
    use herdlet_driver::Availability;

    use super::*;
    use crate::doctor::Verdict;
    use herdlet_config::{Flags, Surroundings};

    fn config(flags: Flags) -> Config {
        let surroundings = Surroundings { variable: &|_| None, root: true, host_name: "here" };
        Config::load(flags, &surroundings).unwrap()
    }

    async fn finding(
        servers: &[&str],
        change: impl FnOnce(&mut Flags),
    ) -> Vec<(&'static str, Verdict, String)> {
        let servers = servers.iter().map(|text| (*text).to_owned()).collect();
        let mut flags = Flags { state_dir: Some("/".into()), servers, ..Flags::default() };
        change(&mut flags);
        // Whether this machine isolates tasks is no subject here.
        let mut config = config(flags);
        config.drivers = config.drivers.with(EXEC, Availability::Disabled);
        let findings = cluster(&config).await;
        findings.into_iter().map(|finding| (finding.check, finding.verdict, finding.message)).collect()
    }

    #[tokio::test]
    async fn servers_are_checked_for_the_region() {
        let standin = StandIn::start(Settings { hold: Duration::from_millis(50), ..Settings::default() });
        let listener = standin.listen().await.unwrap().remove(0);
        let here = listener.address.as_str();
        // A port of a service that no longer exists on any machine.
        let gone = "127.0.0.1:1".to_owned();
        let on = |flags: &mut Flags| flags.raw_exec = Some("true".to_owned());

        let good = finding(&[here], on).await;
        assert_eq!(good, [("servers", Verdict::Ok, format!("{here} of region global answer"))]);

        let half = finding(&[here, &gone], on).await;
        assert_eq!((half[0].1, half.len()), (Verdict::Warning, 1), "{half:?}");
        assert!(
            half[0].2.contains(&format!("{here} of region global answer; failed to connect to {gone}: ")),
            "{half:?}"
        );

        let none = finding(&[&gone], |_| {}).await;
        assert_eq!(
            (none[0].1, none[1].0, none[1].1),
            (Verdict::Failure, "drivers", Verdict::Warning),
            "{none:?}"
        );

        let elsewhere = |n| gone.replace("127.0.0.1", &format!("127.0.0.{n}"));
        let many: Vec<String> = (2..22).map(elsewhere).chain([here.to_owned()]).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let message = &finding(&many, on).await[0].2;
        let beginning = format!("{here} of region global answer; failed to connect to 127.0.0.2:");
        assert!(message.starts_with(&beginning) && message.ends_with("; 15 more fail"), "{message}");

        let in_eu = |flags: &mut Flags| flags.region = Some("eu".to_owned());
        let (check, verdict, message) = finding(&[here], in_eu).await.remove(0);
        let expected = format!("{here} answers with an error: No path to region");
        assert_eq!((check, verdict, message), ("servers", Verdict::Failure, expected));

        standin.lead(None);
        let led = finding(&[here], on).await;
        let says = format!("{here} answers with an error: No cluster leader");
        assert_eq!(led, [("servers", Verdict::Failure, says)]);
    }

    #[tokio::test]
    async fn unusable_certificates_are_reported_once() {
        let servers = vec!["127.0.0.1:1".to_owned(), "127.0.0.1:2".to_owned()];
        let mut config = config(Flags { state_dir: Some("/".into()), servers, ..Flags::default() });
        let [authority, certificate, key] = [(); 3].map(|()| "/nowhere.pem".into());
        config.cluster.as_mut().unwrap().tls =
            Some(herdlet_config::RpcTls { authority, certificate, key, verify_server_hostname: true });
        let finding = cluster(&config).await.remove(0);
        let expected = "failed to read /nowhere.pem: No such file or directory (os error 2)";
        assert_eq!((finding.verdict, finding.message.as_str()), (Verdict::Failure, expected));
    }

    #[tokio::test]
    async fn standalone_agent_checks_no_servers() {
        assert!(finding(&[], |_| {}).await.is_empty());
    }
}
