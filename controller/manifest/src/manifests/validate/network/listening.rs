//! Where tasks listen: numbers of ports and addresses that are right for a container or a group with a network of its own only, or
//! for the machine's network only.

use herdlet_api_types::{
    driver::{FsIsolation, MOCK},
    job::{Group, Task},
    manifest::Network,
};
use serde_json::Value as Json;

use super::{Findings, GroupContext, mode_of};
use crate::yaml::Trail;

/// Words in names of options that set the address where a program listens.
const LISTENS: [&str; 3] = ["bind", "listen", "host"];

/// Warns of `to` where nothing leads from a port to another one: processes of the machine's network listen on the port itself.
pub(super) fn unused_numbers(
    context: &GroupContext<'_>,
    network: &Network,
    trail: &Trail<'_>,
    findings: &mut Findings<'_>,
) {
    let GroupContext { group, drivers, .. } = *context;
    // Simulated tasks listen nowhere.
    let is_process = |task: &Task| {
        let rules = drivers.get(&task.driver).filter(|_| task.driver != MOCK);
        rules.is_some_and(|rules| rules.capabilities.fs_isolation != FsIsolation::Image)
    };
    if group.has_own_network() || group.tasks.is_empty() || !group.tasks.iter().all(is_process) {
        return;
    }
    let ports = trail.field("ports");
    for (label, port) in network.ports.iter().flatten() {
        let Some(to) =
            port.to.filter(|to| i64::from(*to) > 0 && port.fixed.map(i64::from) != Some(i64::from(*to)))
        else {
            continue;
        };
        let (from, listen) = match port.fixed {
            Some(fixed) => (fixed.to_string(), fixed.to_string()),
            None => ("it".to_owned(), format!("`${{NOMAD_PORT_{label}}}`")),
        };
        let message = format!(
            "has no effect for processes in the machine's network: nothing leads from {from} to {to}; write `mode: bridge`, \
             or let the task listen on {listen}"
        );
        findings.warning(&ports.field(label).field("to"), message);
    }
}

/// Warns of a task that is to listen on an address of the machine, which its own network does not have.
pub(super) fn addresses(
    context: &GroupContext<'_>,
    task: &Task,
    trail: &Trail<'_>,
    findings: &mut Findings<'_>,
) {
    if !context.group.has_own_network() {
        return;
    }
    let args = task.config.get("args").and_then(Json::as_array).map(Vec::as_slice).unwrap_or_default();
    let texts: Vec<&str> = args.iter().map(|arg| arg.as_str().unwrap_or_default()).collect();
    let config = trail.field("config");
    let trail = config.field("args");
    for (index, text) in texts.iter().enumerate() {
        let Some(variable) = address_of_machine(context.group, text) else { continue };
        let before = index.checked_sub(1).map_or("", |before| texts[before]);
        if is_to_listen(before, text) {
            let mode = mode_of(context.group);
            let message = format!(
                "`${{{variable}}}` is an address of the machine, on which a task can't listen with `mode: {mode}`; write 0.0.0.0 instead"
            );
            findings.warning(&trail.item(index), message);
        }
    }
}

/// Whether an argument, or the one before it, is an option for the address to listen on.
fn is_to_listen(before: &str, text: &str) -> bool {
    let written = text.split("${").next().unwrap_or_default();
    let is_option = |text: &str| {
        let word = text.split_whitespace().next_back().unwrap_or_default().to_ascii_lowercase();
        word.starts_with('-') && LISTENS.iter().any(|listens| word.contains(listens))
    };
    is_option(written) || (!written.contains(char::is_whitespace) && is_option(before))
}

/// The variable in a text that is the address of one of the group's ports.
fn address_of_machine(group: &Group, text: &str) -> Option<String> {
    let labels = group.network.iter().flat_map(|network| network.ports.keys());
    let names = labels.flat_map(|label| ["IP", "ADDR"].map(|kind| format!("NOMAD_{kind}_{label}")));
    let mut written = names.flat_map(|name| [name.replace('-', "_"), name]);
    written.find(|name| text.contains(&format!("${{{name}}}")))
}
