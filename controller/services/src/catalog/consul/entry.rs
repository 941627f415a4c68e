//! Services and checks in a Consul agent's format, and comparison of held with wanted ones.
//!
//! In: a registration, and the agent's listing. Out: the body of a registration request, or whether it is needed. This
//! module does not send requests.

use std::collections::{BTreeMap, BTreeSet};

use herdlet_api_types::{
    AllocId, Duration, InstanceId, format_duration,
    job::{CheckKind, ConsulAccess, InitialStatus, Weights},
    service::{CheckStatus, RegisteredCheck, Registration},
};
use herdlet_base::authority::host_port;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use crate::catalog::ServiceOwner;

/// Meta keys of our owner mark.
pub(super) const META_INSTANCE: &str = "herdlet-instance";
const META_ALLOC: &str = "herdlet-alloc";
const META_TASK: &str = "herdlet-task";
const META_PLACE: &str = "herdlet-consul";

/// The part of the owner mark that all entries of this agent in one place have. Two places may be the same catalogue: names of one
/// address, or a namespace that is also that of the token. So each entry carries the place that it was registered for.
#[derive(Debug, Clone)]
pub(super) struct Mark {
    pub(super) instance: InstanceId,
    /// Absent for the Consul `default` and the namespace of the config.
    place: Option<String>,
}

impl Mark {
    pub(super) fn new(instance: InstanceId, place: &ConsulAccess) -> Self {
        let ConsulAccess { cluster, namespace, partition } = place;
        let is_default = *place == ConsulAccess::of_cluster(ConsulAccess::DEFAULT_CLUSTER);
        let text = |name: &Option<String>| name.clone().unwrap_or_default();
        // None of the three can contain a slash.
        let full = format!("{cluster}/{}/{}", text(namespace), text(partition));
        let place = (!is_default).then(|| full.trim_end_matches('/').to_owned());
        Self { instance, place }
    }
}

/// A service in the agent's listing; fields that we don't compare are left out.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Entry {
    #[serde(rename = "ID")]
    pub(super) id: String,
    service: String,
    #[serde(default, deserialize_with = "or_default")]
    tags: Vec<String>,
    #[serde(default)]
    address: String,
    #[serde(default)]
    port: u16,
    #[serde(default, deserialize_with = "or_default")]
    meta: BTreeMap<String, String>,
    #[serde(default)]
    enable_tag_override: bool,
    #[serde(default, deserialize_with = "or_default")]
    tagged_addresses: BTreeMap<String, TaggedAddress>,
    #[serde(default, deserialize_with = "or_default")]
    weights: EntryWeights,
}

/// The load-balancing weights of an instance; Consul's default is 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct EntryWeights {
    passing: u32,
    warning: u32,
}

impl Default for EntryWeights {
    fn default() -> Self {
        Weights::default().into()
    }
}

impl From<Weights> for EntryWeights {
    fn from(weights: Weights) -> Self {
        Self { passing: weights.passing, warning: weights.warning }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct TaggedAddress {
    address: String,
    port: u16,
}

/// Names of tagged addresses that Consul itself adds.
const TAGGED_BY_CONSUL: [&str; 5] = ["lan_ipv4", "lan_ipv6", "wan_ipv4", "wan_ipv6", "consul-virtual"];

/// A check in the agent's listing.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct CheckEntry {
    #[serde(rename = "CheckID")]
    pub(super) id: String,
    #[serde(rename = "ServiceID", default)]
    pub(super) service_id: String,
    status: String,
    #[serde(default)]
    output: String,
}

impl Entry {
    /// Whether it was registered for the place of the mark.
    pub(super) fn is_of(&self, mark: &Mark) -> bool {
        self.meta.get(META_PLACE) == mark.place.as_ref()
    }

    /// The owner in its mark.
    pub(super) fn owner(&self) -> Option<ServiceOwner> {
        let alloc = self.meta.get(META_ALLOC)?.parse().ok().map(AllocId)?;
        Some(ServiceOwner { alloc, task: self.meta.get(META_TASK).cloned() })
    }

    pub(super) fn service(&self) -> &str {
        &self.service
    }

    pub(super) fn tags(&self) -> &[String] {
        &self.tags
    }

    /// The body that registers the service unchanged. It has no checks, so existing ones stay.
    pub(super) fn as_body(&self) -> Value {
        json!({
            "ID": self.id,
            "Name": self.service,
            "Tags": self.tags,
            "Address": self.address,
            "Port": self.port,
            "Meta": self.meta,
            "EnableTagOverride": self.enable_tag_override,
        })
    }

    /// Whether it equals `wanted`. Checks are compared by id, which changes with their content.
    pub(super) fn equals(
        &self,
        wanted: &Registration,
        mark: &Mark,
        checks: &BTreeMap<String, CheckEntry>,
    ) -> bool {
        let set = |tags: &[String]| tags.iter().cloned().collect::<BTreeSet<_>>();
        let held_checks: BTreeSet<&str> = checks
            .values()
            .filter(|check| check.service_id == self.id)
            .map(|check| check.id.as_str())
            .collect();
        let wanted_checks: BTreeSet<&str> = wanted.checks.iter().map(|check| check.id.as_str()).collect();
        self.id == wanted.id
            && self.service == wanted.name
            && self.address == wanted.address
            && self.port == wanted.port
            && self.enable_tag_override == wanted.enable_tag_override
            // If others may change the tags, the meta identifies the wanted ones.
            && (wanted.enable_tag_override || set(&self.tags) == set(&wanted.tags))
            && self.has_tagged_addresses_of(wanted)
            && self.weights == wanted.weights.into()
            && self.meta == meta(wanted, mark)
            && held_checks == wanted_checks
    }

    fn has_tagged_addresses_of(&self, wanted: &Registration) -> bool {
        let tagged = |(name, address): (&String, &String)| {
            self.tagged_addresses
                .get(name)
                .is_some_and(|held| held.address == *address && held.port == wanted.port)
        };
        let mut others =
            self.tagged_addresses.keys().filter(|name| !wanted.tagged_addresses.contains_key(*name));
        wanted.tagged_addresses.iter().all(tagged) && others.all(|name| TAGGED_BY_CONSUL.contains(&&**name))
    }
}

impl CheckEntry {
    /// Its status. A check that has never run is critical without output.
    pub(super) fn status(&self) -> CheckStatus {
        match self.status.as_str() {
            "passing" => CheckStatus::Success,
            "warning" => CheckStatus::Warning,
            "critical" if self.output.is_empty() => CheckStatus::Pending,
            _ => CheckStatus::Failure,
        }
    }

    /// Its output, at most 3 KiB.
    pub(super) fn output(&self) -> String {
        let mut end = self.output.len().min(3 * 1024);
        while !self.output.is_char_boundary(end) {
            end -= 1;
        }
        self.output.get(..end).unwrap_or_default().to_owned()
    }
}

/// The body of `PUT /v1/agent/service/register`.
pub(super) fn body(registration: &Registration, mark: &Mark) -> Value {
    let tagged: BTreeMap<&str, Value> = registration
        .tagged_addresses
        .iter()
        .map(|(name, address)| (&**name, json!({ "Address": address, "Port": registration.port })))
        .collect();
    json!({
        "ID": registration.id,
        "Name": registration.name,
        "Tags": registration.tags,
        "Address": registration.address,
        "Port": registration.port,
        "Meta": meta(registration, mark),
        "EnableTagOverride": registration.enable_tag_override,
        "TaggedAddresses": tagged,
        "Weights": { "Passing": registration.weights.passing, "Warning": registration.weights.warning },
        "Checks": registration.checks.iter().map(check).collect::<Vec<_>>(),
    })
}

/// The job's meta and our mark, which takes precedence.
fn meta(registration: &Registration, mark: &Mark) -> BTreeMap<String, String> {
    let mut meta = registration.meta.clone();
    meta.insert(META_INSTANCE.to_owned(), mark.instance.to_string());
    meta.insert(META_ALLOC.to_owned(), registration.alloc.to_string());
    for (key, value) in [(META_TASK, &registration.task), (META_PLACE, &mark.place)] {
        match value {
            Some(value) => meta.insert(key.to_owned(), value.clone()),
            None => meta.remove(key),
        };
    }
    meta
}

fn check(check: &RegisteredCheck) -> Value {
    let target = host_port(&check.address, check.port);
    let thresholds = check.thresholds;
    let mut body = json!({ "CheckID": check.id, "Name": check.name, "Notes": check.notes });
    if check.kind.has_address() {
        body["Interval"] = format_duration(check.interval.as_nanos()).into();
        body["Timeout"] = format_duration(check.timeout.as_nanos()).into();
        body["SuccessBeforePassing"] = thresholds.success_before_passing.into();
        body["FailuresBeforeCritical"] = thresholds.failures_before_critical.into();
    }
    if thresholds.failures_before_warning > 0 {
        // Consul 1.10 and later; sent only if set, because older versions may refuse unknown fields.
        body["FailuresBeforeWarning"] = thresholds.failures_before_warning.into();
    }
    if let Some(status) = check.initial_status {
        body["Status"] = match status {
            InitialStatus::Passing => "passing",
            InitialStatus::Warning => "warning",
            InitialStatus::Critical => "critical",
        }
        .into();
    }
    match &check.kind {
        CheckKind::Tcp => body["TCP"] = target.into(),
        CheckKind::Grpc { service, tls, tls_skip_verify, tls_server_name } => {
            let slash = if service.is_empty() { "" } else { "/" };
            body["GRPC"] = format!("{target}{slash}{service}").into();
            body["GRPCUseTLS"] = (*tls).into();
            body["TLSSkipVerify"] = (*tls_skip_verify).into();
            if !tls_server_name.is_empty() {
                body["TLSServerName"] = tls_server_name.as_str().into();
            }
        }
        CheckKind::Script { .. } => {
            let alive = check.interval.as_nanos().saturating_add(TTL_MARGIN.as_nanos());
            body["TTL"] = format_duration(alive).into();
        }
        CheckKind::Http {
            path,
            method,
            protocol,
            header,
            body: content,
            tls_skip_verify,
            tls_server_name,
        } => {
            body["HTTP"] = format!("{protocol}://{target}{path}").into();
            body["Method"] = method.as_str().into();
            body["Header"] = json!(header);
            body["Body"] = content.as_str().into();
            body["TLSSkipVerify"] = (*tls_skip_verify).into();
            if !tls_server_name.is_empty() {
                body["TLSServerName"] = tls_server_name.as_str().into();
            }
        }
    }
    body
}

/// How late a command's result may be before Consul considers the check failing; as in Nomad.
const TTL_MARGIN: Duration = Duration::from_secs(31);

/// Go writes an empty list or map as null.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
