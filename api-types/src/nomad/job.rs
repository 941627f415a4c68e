//! Canonical jobs in Nomad's JSON, as in `GET /v1/job/ID`.

use std_alloc::{
    collections::BTreeMap,
    string::{String, ToString},
    sync::Arc,
    vec::Vec,
};

use serde_json::{Map, Value, json};

use crate::{
    constraint::{Affinity, Constraint, Spread},
    job::{
        AddressMode, Artifact, ChangeMode, Check, CheckKind, ConsulAccess, CsiPlugin, Group, HealthCheck,
        Identity, InitialStatus, Job, JobType, Network, NetworkMode, OnUpdate, PortRequest, Provider,
        ReschedulePolicy, RestartMode, RestartPolicy, Scaling, Secret, Service, Task, TaskAction, Ui, Update,
        VaultAccess, VolumeRequest,
    },
    manifest::defaults::UPDATE,
    view::{AllocView, ConvergenceState, JobVersion, JobView, VersionTag},
};

use super::{Children, children, dns::dns, job_summary, map, resources::lifecycle, template::templates};

/// The actions of a job, each with its task.
pub fn actions(job: &Job) -> Vec<Value> {
    let tasks = job.groups.iter().flat_map(|group| group.tasks.iter().map(move |task| (group, task)));
    let named = tasks.flat_map(|(group, task)| {
        task.actions.iter().map(move |of| {
            let mut shown = action(of);
            shown["TaskName"] = Value::String(task.name.clone());
            shown["TaskGroupName"] = Value::String(group.name.clone());
            shown
        })
    });
    named.collect()
}

/// Converts a job. `version` is its number, from 0.
pub fn job(job: &Job, version: u64) -> Value {
    json!({
        "ID": job.id, "Name": job.name, "Namespace": job.namespace, "Type": job.kind.as_str(),
        "Priority": job.priority, "Region": job.region, "Datacenters": job.datacenters, "Version": version,
        "Meta": map(&job.meta), "Stop": job.stop, "AllAtOnce": false, "ParentID": job.parent_id().unwrap_or_default(),
        "NodePool": job.node_pool,
        "Constraints": constraints(&job.constraints), "Affinities": affinities(&job.affinities), "Spreads": spreads(&job.spreads), "Periodic": job.periodic.as_ref().map(children::periodic),
        "ParameterizedJob": job.parameterized.as_ref().map(children::parameterized),
        "Dispatched": job.dispatched().is_some(), "Payload": null,
        "Multiregion": null, "Update": null,
        "DispatchIdempotencyToken": job.dispatched().map_or("", |(_, token)| token),
        "ConsulToken": "", "ConsulNamespace": "", "VaultToken": "", "VaultNamespace": "", "NomadTokenID": "",
        "UI": job.ui.as_ref().map(ui), "VersionTag": null, "Status": null, "StatusDescription": null, "Stable": null,
        "SubmitTime": null, "CreateIndex": null, "ModifyIndex": null, "JobModifyIndex": null,
        "TaskGroups": job.groups.iter().map(|of| group(of, job.kind)).collect::<Vec<_>>(),
    })
}

/// A job with its current state.
pub fn whole_job(view: &JobView) -> Value {
    let mut whole = job(&view.job, view.version);
    if let Value::Object(whole) = &mut whole {
        whole.insert("Stop".into(), view.is_stopped().into());
        whole.insert("Status".into(), job_status(view).into());
        whole.insert("StatusDescription".into(), view.convergence.message.clone().into());
        whole.insert("SubmitTime".into(), view.submit_time.0.into());
        whole.insert("CreateIndex".into(), view.create_index.into());
        whole.insert("ModifyIndex".into(), view.modify_index.into());
        whole.insert("JobModifyIndex".into(), view.modify_index.into());
        whole.insert("VersionTag".into(), version_tag(view.tag.as_ref()));
    }
    whole
}

/// A version of a job in Nomad's list of versions.
pub fn job_version(view: &JobView, version: &JobVersion) -> Value {
    let mut whole = job(&version.job, version.version);
    if let Value::Object(whole) = &mut whole {
        whole.insert("Stable".into(), view.is_stable(version.version).into());
        whole.insert("SubmitTime".into(), version.submit_time.0.into());
        whole.insert("CreateIndex".into(), view.create_index.into());
        whole.insert("ModifyIndex".into(), version.index.into());
        whole.insert("JobModifyIndex".into(), version.index.into());
        whole.insert("VersionTag".into(), version_tag(version.tag.as_ref()));
    }
    whole
}

fn version_tag(tag: Option<&VersionTag>) -> Value {
    let Some(VersionTag { name, description, tagged_at }) = tag else { return Value::Null };
    json!({ "Name": name, "Description": description, "TaggedTime": tagged_at.0 })
}

/// A job in Nomad's list of jobs; `allocs` are its allocations, `children` the counts of its children.
pub fn job_stub(view: &JobView, allocs: &[Arc<AllocView>], children: &Children) -> Value {
    json!({
        "ID": view.key.id, "ParentID": view.job.parent_id().unwrap_or_default(), "Name": view.job.name, "Namespace": view.key.namespace,
        "Datacenters": view.job.datacenters, "NodePool": view.job.node_pool, "Multiregion": null,
        "Type": view.job.kind.as_str(), "Priority": view.job.priority, "Periodic": view.job.launches().is_some(),
        "ParameterizedJob": view.job.takes_dispatches(), "Stop": view.is_stopped(), "Status": job_status(view),
        "StatusDescription": view.convergence.message, "JobSummary": job_summary(view, allocs, children),
        "Version": view.version, "Meta": map(&view.job.meta),
        "CreateIndex": view.create_index, "ModifyIndex": view.modify_index,
        "JobModifyIndex": view.modify_index, "SubmitTime": view.submit_time.0,
    })
}

/// Nomad's job status: a job that has ended or is being stopped is dead. Jobs with children never end by themselves.
pub fn job_status(view: &JobView) -> &'static str {
    let is_done = view.job.kind.completes()
        && view.convergence.state == ConvergenceState::Converged
        && !view.job.makes_children();
    match view.convergence.state {
        _ if view.is_stopped() || is_done => "dead",
        // If only the roll-out has failed, the allocations keep running.
        ConvergenceState::Failed if view.has_failed(view.version) => "running",
        ConvergenceState::Failed => "dead",
        ConvergenceState::Waiting if view.allocs.is_empty() => "pending",
        ConvergenceState::Converged | ConvergenceState::Progressing | ConvergenceState::Waiting => "running",
    }
}

/// Nomad writes an empty list as null.
fn list(items: Vec<Value>) -> Value {
    if items.is_empty() { Value::Null } else { Value::Array(items) }
}

fn constraint(constraint: &Constraint) -> Value {
    let Constraint { attribute, operator, value } = constraint;
    json!({ "LTarget": attribute, "Operand": operator.as_str(), "RTarget": value })
}

fn constraints(constraints: &[Constraint]) -> Value {
    list(constraints.iter().map(constraint).collect())
}

fn affinities(affinities: &[Affinity]) -> Value {
    let shown = affinities.iter().map(|affinity| {
        let mut shown = constraint(&affinity.wanted);
        shown["Weight"] = affinity.weight.into();
        shown
    });
    list(shown.collect())
}

fn spreads(spreads: &[Spread]) -> Value {
    let shown = spreads.iter().map(|Spread { attribute, weight, targets }| {
        let targets =
            targets.iter().map(|target| json!({ "Value": target.value, "Percent": target.percent }));
        json!({ "Attribute": attribute, "Weight": weight, "SpreadTarget": list(targets.collect()) })
    });
    list(shown.collect())
}

fn group(group: &Group, kind: JobType) -> Value {
    let networks = group.network.as_ref().map(|network| json!([group_network(network)]));
    let volumes: Map<String, Value> =
        group.volumes.iter().map(|(name, request)| (name.clone(), volume(name, request))).collect();
    json!({
        "Name": group.name, "Count": group.count, "Meta": map(&group.meta),
        "Update": group_update(group, kind), "Scaling": group.scaling.as_ref().map(scaling),
        "RestartPolicy": group.tasks.first().map(|task| restart(&task.restart)),
        "Networks": networks, "Volumes": if volumes.is_empty() { Value::Null } else { Value::Object(volumes) },
        "Services": list(group.services.iter().map(service).collect()),
        "EphemeralDisk": {
            "SizeMB": group.disk_mib, "Sticky": group.kept_disk.sticky, "Migrate": group.kept_disk.migrate,
        },
        "ShutdownDelay": group.shutdown_delay, "MaxRunDuration": group.max_run_duration,
        "Tasks": group.tasks.iter().map(task).collect::<Vec<_>>(),
        "Constraints": constraints(&group.constraints), "Affinities": affinities(&group.affinities), "Spreads": spreads(&group.spreads),
        "ReschedulePolicy": reschedule(&group.reschedule),
        "Migrate": null, "Consul": group.consul_scope().map(consul),
    })
}

fn group_network(network: &Network) -> Value {
    let mut shown = self::network(&network.mode, &network.ports, |label| network.host_network(label));
    shown["DNS"] = dns(&network.dns);
    if !network.hostname.is_empty() {
        shown["Hostname"] = json!(network.hostname);
    }
    if !network.cni_args.is_empty() {
        shown["CNI"] = json!({ "Args": network.cni_args });
    }
    shown
}

fn network<'n>(
    mode: &NetworkMode,
    ports: &BTreeMap<String, PortRequest>,
    host_network: impl Fn(&str) -> &'n str,
) -> Value {
    let ports = |fixed: bool| {
        let wanted = ports.iter().filter(|(_, port)| port.fixed.is_some() == fixed);
        let port = |(label, port): (&String, &PortRequest)| {
            json!({
                "Label": label, "Value": port.fixed.unwrap_or_default(), "To": port.to.unwrap_or_default(),
                "HostNetwork": host_network(label),
            })
        };
        list(wanted.map(port).collect())
    };
    json!({ "Mode": mode.to_string(), "ReservedPorts": ports(true), "DynamicPorts": ports(false) })
}

fn ui(ui: &Ui) -> Value {
    let links = ui.links.iter().map(|link| json!({ "Label": link.label, "URL": link.url }));
    json!({ "Description": ui.description, "Links": list(links.collect()) })
}

fn reschedule(policy: &ReschedulePolicy) -> Value {
    json!({
        "Attempts": policy.attempts, "Interval": policy.interval, "Delay": policy.delay,
        "DelayFunction": policy.delay_function.as_str(), "MaxDelay": policy.max_delay,
        "Unlimited": policy.unlimited,
    })
}

fn scaling(scaling: &Scaling) -> Value {
    json!({
        "ID": "", "Type": "horizontal", "Target": null, "Policy": scaling.policy, "Enabled": scaling.enabled,
        "Min": scaling.min, "Max": scaling.max,
    })
}

/// In Nomad a service without roll-outs has `MaxParallel` 0; without `Update` it would have the default.
fn group_update(group: &Group, kind: JobType) -> Option<Value> {
    let none = (kind == JobType::Service).then_some(&NO_UPDATE);
    group.update.as_ref().or(none).map(update)
}

const NO_UPDATE: Update = Update { max_parallel: 0, ..UPDATE };

fn update(update: &Update) -> Value {
    let health_check = match update.health_check {
        HealthCheck::Checks => "checks",
        HealthCheck::TaskStates => "task_states",
        HealthCheck::Manual => "manual",
    };
    json!({
        "MaxParallel": update.max_parallel, "MinHealthyTime": update.min_healthy_time,
        "HealthyDeadline": update.healthy_deadline, "ProgressDeadline": update.progress_deadline,
        "HealthCheck": health_check, "AutoRevert": update.auto_revert, "AutoPromote": update.auto_promote,
        "Canary": update.canary, "Stagger": update.stagger,
    })
}

fn volume(name: &str, request: &VolumeRequest) -> Value {
    json!({
        "Name": name, "Type": "host", "Source": request.source, "ReadOnly": request.read_only,
        "PerAlloc": request.per_alloc, "AccessMode": "", "AttachmentMode": "", "MountOptions": null,
    })
}

fn restart(policy: &RestartPolicy) -> Value {
    let mode = match policy.mode {
        RestartMode::Fail => "fail",
        RestartMode::Delay => "delay",
    };
    json!({
        "Attempts": policy.attempts, "Interval": policy.interval, "Delay": policy.delay, "Mode": mode,
        "RenderTemplates": policy.render_templates,
    })
}

fn texts(texts: &[String]) -> Value {
    list(texts.iter().cloned().map(Value::String).collect())
}

fn service(service: &Service) -> Value {
    let provider = match service.provider {
        Provider::Nomad => "nomad",
        Provider::Consul => "consul",
    };
    json!({
        "Name": service.name, "Provider": provider, "Cluster": service.consul_cluster().unwrap_or_default(),
        "PortLabel": service.port.clone().unwrap_or_default(),
        "Address": service.address.clone().unwrap_or_default(), "AddressMode": address_mode(service.address_mode),
        "Tags": texts(&service.tags), "CanaryTags": texts(&service.canary_tags), "Meta": map(&service.meta),
        "CanaryMeta": map(&service.canary_meta), "TaggedAddresses": map(&service.tagged_addresses),
        "EnableTagOverride": service.enable_tag_override,
        "Weights": { "Passing": service.weights.passing, "Warning": service.weights.warning },
        "Checks": list(service.checks.iter().map(check).collect()),
        "Identity": service.identity.as_ref().map(identity),
        // Each check has the service's settings.
        "OnUpdate": OnUpdate::RequireHealthy.as_str(), "TaskName": service.task.clone().unwrap_or_default(), "CheckRestart": null,
    })
}

fn address_mode(mode: AddressMode) -> &'static str {
    match mode {
        AddressMode::Auto => "auto",
        AddressMode::Host => "host",
        AddressMode::Driver => "driver",
        AddressMode::Alloc => "alloc",
    }
}

fn check(check: &Check) -> Value {
    let restart = check.check_restart.map(|restart| {
        json!({ "Limit": restart.limit, "Grace": restart.grace, "IgnoreWarnings": restart.ignore_warnings })
    });
    let initial_status = check.initial_status.map(|status| match status {
        InitialStatus::Passing => "passing",
        InitialStatus::Warning => "warning",
        InitialStatus::Critical => "critical",
    });
    let thresholds = check.thresholds;
    let mut shown = json!({
        "Name": check.name, "PortLabel": check.port.clone().unwrap_or_default(),
        "AddressMode": check.address_mode.map(address_mode).unwrap_or_default(),
        "Interval": check.interval, "Timeout": check.timeout, "InitialStatus": initial_status.unwrap_or_default(),
        "SuccessBeforePassing": thresholds.success_before_passing,
        "FailuresBeforeCritical": thresholds.failures_before_critical,
        "FailuresBeforeWarning": thresholds.failures_before_warning, "OnUpdate": check.on_update.as_str(),
        "CheckRestart": restart, "Notes": check.notes,
    });
    let kind = match &check.kind {
        CheckKind::Tcp => json!({ "Type": "tcp" }),
        CheckKind::Http { path, method, protocol, header, body, tls_skip_verify, tls_server_name } => json!({
            "Type": "http", "Path": path, "Method": method, "Protocol": protocol, "Header": header,
            "Body": body, "TLSSkipVerify": tls_skip_verify, "TLSServerName": tls_server_name,
        }),
        CheckKind::Grpc { service, tls, tls_skip_verify, tls_server_name } => json!({
            "Type": "grpc", "GRPCService": service, "GRPCUseTLS": tls, "TLSSkipVerify": tls_skip_verify,
            "TLSServerName": tls_server_name,
        }),
        CheckKind::Script { command, args, task } => {
            json!({ "Type": "script", "Command": command, "Args": texts(args), "TaskName": task })
        }
    };
    if let (Value::Object(shown), Value::Object(kind)) = (&mut shown, kind) {
        shown.extend(kind);
    }
    shown
}

fn task(task: &Task) -> Value {
    let mounts = task.volume_mounts.iter().map(|mount| {
        json!({
            "Volume": mount.volume, "Destination": mount.destination, "ReadOnly": mount.read_only,
            "PropagationMode": mount.propagation,
        })
    });
    json!({
        "Name": task.name, "Driver": task.driver, "User": task.user.clone().unwrap_or_default(),
        "Config": task.config, "Env": map(&task.env), "Meta": map(&task.meta), "Leader": task.leader,
        "Lifecycle": lifecycle(task.lifecycle).map(|hook| json!({ "Hook": hook.hook, "Sidecar": hook.sidecar })),
        "RestartPolicy": restart(&task.restart), "Services": list(task.services.iter().map(service).collect()),
        "VolumeMounts": list(mounts.collect()), "Identities": list(task.identities.iter().map(identity).collect()),
        "Resources": {
            "CPU": task.resources.cpu_mhz.unwrap_or_default(),
            "Cores": task.resources.cores.unwrap_or_default(),
            "MemoryMB": task.resources.memory_mib.unwrap_or_default(),
            "MemoryMaxMB": task.resources.memory_max_mb(),
            "SecretsMB": task.resources.secrets_mib.unwrap_or_default(),
            "Networks": (!task.ports.is_empty()).then(|| {
                let of_machine = |_: &str| Network::DEFAULT_HOST_NETWORK;
                json!([network(&NetworkMode::Host, &task.ports, of_machine)])
            }),
        },
        "LogConfig": {
            "MaxFiles": task.logs.max_files, "MaxFileSizeMB": task.logs.max_file_size_mib,
            "Disabled": task.logs.disabled,
        },
        "KillSignal": task.kill_signal.clone().unwrap_or_default(), "KillTimeout": task.kill_timeout,
        "ShutdownDelay": task.shutdown_delay,
        "Templates": templates(&task.templates), "Artifacts": list(task.artifacts.iter().map(artifact).collect()), "Secrets": list(task.secrets.iter().map(secret).collect()), "Vault": task.vault.as_ref().map(vault),
        "Consul": task.consul.as_ref().map(consul),
        "Constraints": constraints(&task.constraints), "Affinities": affinities(&task.affinities),
        "DispatchPayload": task.dispatch_payload.as_ref().map(|file| json!({ "File": file })), "CSIPluginConfig": task.csi_plugin.as_ref().map(csi_plugin),
        "Actions": list(task.actions.iter().map(action).collect()),
    })
}

fn csi_plugin(plugin: &CsiPlugin) -> Value {
    json!({
        "ID": plugin.id, "Type": plugin.kind.as_str(), "MountDir": plugin.mount_dir,
        "StagePublishBaseDir": plugin.stage_publish_base_dir, "HealthTimeout": plugin.health_timeout,
    })
}

fn action(action: &TaskAction) -> Value {
    json!({ "Name": action.name, "Command": action.command, "Args": texts(&action.args) })
}

fn vault(access: &VaultAccess) -> Value {
    json!({
        "Cluster": access.cluster, "Role": access.role.clone().unwrap_or_default(),
        "Namespace": access.namespace.clone().unwrap_or_default(), "Policies": null, "Env": access.env,
        "DisableFile": access.disable_file, "ChangeMode": change_mode(access.change_mode),
        "ChangeSignal": access.change_signal.clone().unwrap_or_default(),
        "AllowTokenExpiration": access.allow_token_expiration,
    })
}

fn consul(access: &ConsulAccess) -> Value {
    json!({
        "Cluster": access.cluster, "Namespace": access.namespace.clone().unwrap_or_default(),
        "Partition": access.partition.clone().unwrap_or_default(),
    })
}

fn secret(secret: &Secret) -> Value {
    let config = secret.namespace.as_ref().map(|namespace| json!({ "namespace": namespace }));
    json!({
        "Name": secret.name, "Provider": secret.provider, "Path": secret.path, "Config": config,
        "Env": map(&secret.env),
    })
}

fn artifact(artifact: &Artifact) -> Value {
    json!({
        "GetterSource": artifact.source, "GetterOptions": map(&artifact.options), "GetterHeaders": map(&artifact.headers),
        "GetterMode": artifact.mode.as_str(), "GetterInsecure": artifact.insecure, "RelativeDest": artifact.destination,
        "Chown": artifact.chown,
    })
}

fn change_mode(mode: ChangeMode) -> &'static str {
    match mode {
        ChangeMode::Noop => "noop",
        ChangeMode::Signal => "signal",
        ChangeMode::Restart => "restart",
    }
}

fn identity(identity: &Identity) -> Value {
    json!({
        "Name": identity.name, "Audience": identity.aud, "TTL": identity.ttl.unwrap_or_default(),
        "Env": identity.env, "File": identity.file, "Filepath": identity.filepath.clone().unwrap_or_default(), "ChangeMode": change_mode(identity.change_mode),
        "ChangeSignal": identity.change_signal.clone().unwrap_or_default(), "ExtraClaims": texts(&identity.extra_claims),
    })
}
