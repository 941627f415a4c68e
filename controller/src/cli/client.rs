//! The commands for an agent, and offline ones: their names, help and arguments.

use clap::Subcommand;
use herdlet_cli::{
    Connection, action, apply, checks, config, convert, delete, deployments, diff, dispatch, drain, eval,
    exec, explain, fs, gc, get, identity, images, job, logs, monitor, offline, restart, rollback, scale,
    schema, status, stop, template, top, var, vault, wait,
};

use super::{doctor, man, simulate, ui};

/// Commands for an agent, and offline ones.
#[derive(Debug, Subcommand)]
pub enum ClientCommand {
    /// Make manifests the desired state
    #[command(
        visible_alias = "up",
        after_help = "Examples:\n  herdlet apply -f web.yaml --wait\n  herdlet apply -f jobs.d -f extra.yaml\n  herdlet up                             apply herdlet.yaml, else all manifests of this folder\n  herdlet apply -f shop.d --prune shop   and delete jobs of earlier applies that are not in it\n  generate | herdlet apply -f -"
    )]
    Apply(apply::ApplyArgs),
    /// Stop and remove jobs; remove volumes
    #[command(
        visible_alias = "down",
        after_help = "Examples:\n  herdlet delete web --wait              keep volumes and their data\n  herdlet delete web --purge             also delete the volumes that only it used, and their data\n  herdlet down                           delete what the manifests of this folder define\n  herdlet delete volume site             remove a volume, keep its data\n  herdlet delete volume site --purge     delete its data too, even if the volume was removed before"
    )]
    Delete(delete::DeleteArgs),
    /// List jobs, allocs, tasks, services, volumes, deployments, events or the versions of a job
    #[command(
        after_help = "Examples:\n  herdlet get jobs\n  herdlet get allocs web -o wide\n  herdlet get allocs --watch             show changes as they happen\n  herdlet get events web                 recent events and their causes\n  herdlet get tasks -o name | xargs herdlet describe\n  herdlet get jobs web -o yaml           print a manifest that can be applied\n  herdlet get jobs -l app=shop -o custom-columns=JOB:.key.id,VERSION:.version\n  herdlet get jobs -o jsonpath={.items[*].key.id}"
    )]
    Get(get::GetArgs),
    /// List allocations that have not ended; get allocs lists all
    #[command(
        after_help = "Examples:\n  herdlet ps web\n  herdlet ps -a                          also ended allocations, as get allocs does"
    )]
    Ps(get::PsArgs),
    /// List differences from what the agent created, and their repairs: get drift
    #[command(after_help = "Examples:\n  herdlet drift\n  herdlet drift web -o json")]
    Drift(get::OfKindArgs),
    /// Show the state of jobs, and problems
    #[command(
        after_help = "Examples:\n  herdlet status\n  herdlet status --watch                 update whenever something changes\n  herdlet status web db --check          for scripts: report by the exit code"
    )]
    Status(status::StatusArgs),
    /// Watch the state of jobs, with their use of processor and memory
    #[command(
        after_help = "Example:\n  herdlet top                            until q or Ctrl-C\n\nKeys: up and down choose a job, enter shows its tasks, a those of all jobs, s sorts by CPU, memory or name.\n\nCPU is in percent of one core; MEMORY includes everything that counts against the limit."
    )]
    Top(top::TopArgs),
    /// Explain why something has not converged, and what happens next: the end of what describe shows
    #[command(
        after_help = "Examples:\n  herdlet explain web\n  herdlet explain web.web[0]\n  herdlet explain var nomad/jobs/web     what a change of the variable would do\n\nFor all details, such as events and ports: herdlet describe"
    )]
    Explain(explain::ExplainAnyArgs),
    /// Show all details: ports, checks, tasks with their last events, and the output of explain
    #[command(
        after_help = "Examples:\n  herdlet describe web\n  herdlet describe web.web[0]/httpd\n\nOnly what it is waiting for: herdlet explain"
    )]
    Describe(explain::ExplainArgs),
    /// Print the output of tasks
    #[command(
        after_help = "Examples:\n  herdlet logs -f web\n  herdlet logs -f                        of all jobs, also of those that start later\n  herdlet logs web db --timestamps --tail 50\n  herdlet logs -f -l app=shop\n  herdlet logs web.web[0]/httpd --stderr --tail 50\n  herdlet logs web -o json"
    )]
    Logs(logs::LogsArgs),
    /// Execute a command in a running task
    #[command(
        after_help = "Examples:\n  herdlet exec -it web -- sh\n  herdlet exec web cat /etc/hostname     in the first healthy allocation of the job\n  herdlet exec web/httpd -- cat local/config\n  tar c . | herdlet exec -i web -- tar x -C local"
    )]
    Exec(exec::ExecArgs),
    /// Run an action of a job, a command that it names, or list its actions
    #[command(
        after_help = "Examples:\n  herdlet action web                     list the actions of a job\n  herdlet action web clear-cache\n  herdlet action web.web[0]/httpd clear-cache"
    )]
    Action(action::ActionArgs),
    /// List and print files of an allocation
    #[command(
        after_help = "Examples:\n  herdlet fs ls web\n  herdlet fs cat web.web[0]/httpd local/config\n  herdlet fs stat web alloc/data\n\nLinks are not followed, and secrets can't be read."
    )]
    Fs(fs::FsArgs),
    /// Restart tasks
    #[command(
        after_help = "Examples:\n  herdlet restart web\n  herdlet restart web --wait             wait until the job has converged again\n  herdlet restart web --task httpd\n  herdlet restart web.web[0] --all"
    )]
    Restart(restart::RestartArgs),
    /// Stop a job but keep it, or stop allocations, which their job then replaces
    #[command(
        after_help = "Examples:\n  herdlet stop web --wait                keep its versions and logs; to start it again: herdlet start web\n  herdlet stop web.web[0]\n  herdlet stop web.web                   stop all allocations of a group at once\n\nTo stop and remove a job: herdlet delete JOB"
    )]
    Stop(stop::StopArgs),
    /// Start jobs that were stopped, or what of them has failed
    #[command(
        after_help = "Examples:\n  herdlet start web --wait\n  herdlet start web.web[0]               try a failed allocation again, in a new one\n\nApplying its manifest starts it too, and so does a rollback to a version that is not stopped: herdlet rollback JOB"
    )]
    Start(stop::StartArgs),
    /// Send a signal to tasks
    #[command(after_help = "Examples:\n  herdlet signal web HUP\n  herdlet signal -s SIGUSR1 web/httpd api")]
    Signal(restart::SignalArgs),
    /// Run a child of a parameterized job, with a payload and meta
    #[command(
        after_help = "Examples:\n  herdlet dispatch import rows.csv --meta table=users --wait\n  generate | herdlet dispatch import -\n\nThe payload has at most 16 KiB. The child is a separate job: use its id with herdlet status, logs and delete."
    )]
    Dispatch(dispatch::DispatchArgs),
    /// Commands under Nomad's names
    #[command(
        after_help = "Example:\n  herdlet job periodic force backup\n\nTo list all commands of Nomad that herdlet accepts: herdlet job"
    )]
    Job(job::JobArgs),
    /// Go back to an older version of a job
    #[command(
        after_help = "Examples:\n  herdlet get versions web\n  herdlet rollback web --wait            to the newest earlier version that is good\n  herdlet rollback web --to 3\n\nThe content of that version becomes a new version; the last six are stored."
    )]
    Rollback(rollback::RollbackArgs),
    /// Change the count of a group, until its manifest is applied again
    #[command(
        after_help = "Examples:\n  herdlet scale web 3 --wait\n  herdlet scale shop.worker 0\n\nThis creates a new version of the job; the next apply of its manifest restores the manifest's count."
    )]
    Scale(scale::ScaleArgs),
    /// Open the status page in a browser, served on a local port until Ctrl-C
    #[command(
        after_help = "Examples:\n  herdlet ui\n  herdlet ui --no-open                    only print the address, which works once"
    )]
    Ui(ui::UiArgs),
    /// Promote the canaries of a job's deployment, which then replace the old allocations
    #[command(
        after_help = "Examples:\n  herdlet get deployments web\n  herdlet promote web\n  herdlet promote web --group api\n\nAll canaries must be healthy. To abandon the new version instead: herdlet deployment fail web"
    )]
    Promote(deployments::PromoteArgs),
    /// Promote, fail, pause or resume a deployment
    #[command(
        after_help = "Examples:\n  herdlet deployment promote web\n  herdlet deployment fail web        with auto_revert, the job returns to its last stable version"
    )]
    Deployment(deployments::DeploymentArgs),
    /// Stop the allocations of this node, and start no new ones
    #[command(
        after_help = "Examples:\n  herdlet drain                          one allocation of a group at a time; batch jobs have an hour\n  herdlet drain --deadline 5m --ignore-system\n  herdlet drain --force                  stop everything at once\n  herdlet drain --disable                take new allocations again\n\nJobs are kept, and wait until the node is eligible again."
    )]
    Drain(drain::DrainArgs),
    /// Show or set whether this node takes new allocations
    #[command(
        after_help = "Examples:\n  herdlet eligibility\n  herdlet eligibility --disable          what runs continues\n  herdlet eligibility --enable"
    )]
    Eligibility(drain::EligibilityArgs),
    /// List the evaluations of changes, as Nomad has them, or show one
    #[command(
        after_help = "Examples:\n  herdlet eval\n  herdlet eval 1f2e3d4c                  its deployment, and what was not placed"
    )]
    Eval(eval::EvalArgs),
    /// Variables: encrypted settings and secrets of jobs
    #[command(
        after_help = "Examples:\n  herdlet var put nomad/jobs/web user=me password=@password.txt\n  herdlet var get nomad/jobs/web\n  herdlet var list\n\nA task may read nomad/jobs and what is named after its job, group and task below it."
    )]
    Var(Box<var::VarArgs>),
    /// Identities: the tokens of tasks
    #[command(after_help = "Examples:\n  herdlet identity key list\n  herdlet identity key rotate")]
    Identity(Box<identity::IdentityArgs>),
    /// Tokens of Vault that tasks have
    #[command(after_help = "Example:\n  herdlet vault revoke-all")]
    Vault(vault::VaultArgs),
    /// Show the last results of checks
    #[command(after_help = "Examples:\n  herdlet checks web\n  herdlet checks web.web[0] -o json")]
    Checks(checks::ChecksArgs),
    /// Follow the agent's log, until Ctrl-C
    #[command(after_help = "Examples:\n  herdlet monitor\n  herdlet monitor --log-level debug --json")]
    Monitor(monitor::MonitorArgs),
    /// Wait until jobs are converged, healthy, complete or deleted
    #[command(
        after_help = "Examples:\n  herdlet wait web --timeout 1m\n  herdlet wait --for=complete backup\n  herdlet wait --for=deleted web"
    )]
    Wait(wait::WaitArgs),
    /// List images that tasks use or have used, with their digests, sizes and users; pull, load, import, prune and verify them
    #[command(
        after_help = "Examples:\n  herdlet images\n  herdlet images -o json\n  herdlet images pull redis:7.2\n  herdlet images prune --dry-run\n\nThe size after a task is what it has written outside of its mounts."
    )]
    Images(images::ImagesArgs),
    /// Collect garbage: ended jobs, and directories of ended allocations
    #[command(
        after_help = "Examples:\n  herdlet gc --dry-run    list what can be collected, and when and why the agent does so by itself\n  herdlet gc\n\nRunning jobs, and jobs of a folder of manifests, are kept."
    )]
    Gc(gc::GcArgs),
    /// Show what an apply would change
    #[command(
        visible_alias = "plan",
        after_help = "Examples:\n  herdlet diff -f web.yaml\n  herdlet plan                           show what herdlet up would change\n\nExit code: 0 nothing would change, 1 something would, 2 error."
    )]
    Diff(diff::DiffArgs),
    /// Check manifests, without an agent
    #[command(
        after_help = "Example:\n  herdlet validate --strict jobs.d\n\nExit code: 0 good, 1 problems, 2 error."
    )]
    Validate(offline::ValidateArgs),
    /// Convert Nomad job files, in HCL or JSON, to manifests with explicit defaults
    #[command(
        after_help = "Examples:\n  herdlet convert web.nomad.hcl --var image=v2 > web.yaml\n  nomad job inspect web | herdlet convert -"
    )]
    Convert(convert::ConvertArgs),
    /// Render templates of jobs, without an agent or with its data
    #[command(
        after_help = "Example:\n  herdlet template render app.conf.tpl --env PORT=8080 --var nomad/jobs/web.password=secret"
    )]
    Template(template::TemplateArgs),
    /// Explain a field of manifests, or print the whole JSON Schema
    #[command(
        after_help = "Examples:\n  herdlet schema > manifest.schema.json\n  herdlet schema spec.groups.tasks.restart\n  herdlet schema job.group.task.restart   the same in Nomad's syntax"
    )]
    Schema(schema::SchemaArgs),
    /// Simulate many nodes of a Nomad cluster, for capacity tests of its servers, until Ctrl-C
    #[command(
        after_help = "Examples:\n  herdlet simulate --servers 10.0.0.1 --nodes 500\n  herdlet simulate --servers 10.0.0.1 --nodes 50 --run-for 10s..5m --fail 5 --for 1h -o json\n\nEach node is a complete controller with its own id; only its tasks are simulated. No task runs on this machine."
    )]
    Simulate(Box<simulate::SimulateArgs>),
    /// Check what an agent needs on this machine: kernel, cgroups, limits, disk, clock, Consul
    #[command(
        after_help = "Examples:\n  herdlet doctor\n  herdlet doctor --config /etc/herdlet/herdlet.yaml --strict\n\nIt accepts the agent's flags, and changes nothing. Exit code: 0 an agent can work here, 1 it can't."
    )]
    Doctor(Box<doctor::DoctorArgs>),
    /// Show the config that an agent with these flags would have
    #[command(
        after_help = "Examples:\n  herdlet config view --config /etc/herdlet/herdlet.yaml\n  herdlet config view --resolved         with defaults and the source of each value"
    )]
    Config(config::ConfigArgs),
    /// Print the completion script for a shell
    #[command(
        after_help = "Examples:\n  herdlet completions bash > /etc/bash_completion.d/herdlet\n  herdlet completions zsh > \"${fpath[1]}/_herdlet\"\n  herdlet completions fish > ~/.config/fish/completions/herdlet.fish"
    )]
    Completions(offline::CompletionsArgs),
    /// Write man pages
    #[command(after_help = "Example:\n  herdlet man /usr/local/share/man/man1")]
    Man(man::ManArgs),
    /// Print the version
    #[command(after_help = "Example:\n  herdlet version -o json")]
    Version(offline::VersionArgs),
}

impl ClientCommand {
    /// The connection flags of the command; none if it needs no agent.
    pub(super) fn connection(&mut self) -> Option<&mut Connection> {
        match self {
            Self::Apply(args) => Some(&mut args.connection),
            Self::Delete(args) => Some(&mut args.connection),
            Self::Get(args) => Some(&mut args.connection),
            Self::Ps(args) => Some(&mut args.listed.connection),
            Self::Drift(args) => Some(&mut args.connection),
            Self::Status(args) => Some(&mut args.connection),
            Self::Explain(args) => Some(args.connection()),
            Self::Describe(args) => Some(&mut args.connection),
            Self::Logs(args) => Some(&mut args.connection),
            Self::Exec(args) => Some(&mut args.connection),
            Self::Action(args) => Some(&mut args.connection),
            Self::Fs(args) => Some(&mut args.connection),
            Self::Restart(args) => Some(&mut args.connection),
            Self::Stop(args) => Some(&mut args.connection),
            Self::Start(args) => Some(&mut args.connection),
            Self::Signal(args) => Some(&mut args.connection),
            Self::Dispatch(args) => Some(&mut args.connection),
            Self::Job(args) => Some(args.verb.connection()),
            Self::Rollback(args) => Some(&mut args.connection),
            Self::Scale(args) => Some(&mut args.connection),
            Self::Top(args) => Some(&mut args.connection),
            Self::Ui(args) => Some(&mut args.connection),
            Self::Wait(args) => Some(&mut args.connection),
            Self::Promote(args) => Some(&mut args.connection),
            Self::Deployment(args) => Some(args.verb.connection()),
            Self::Gc(args) => Some(&mut args.connection),
            Self::Images(args) => Some(args.connection()),
            Self::Drain(args) => Some(&mut args.connection),
            Self::Eligibility(args) => Some(&mut args.connection),
            Self::Eval(args) => Some(&mut args.connection),
            Self::Var(args) => args.verb.connection(),
            Self::Identity(args) => Some(args.connection()),
            Self::Vault(args) => Some(args.connection()),
            Self::Template(args) => args.connection(),
            Self::Checks(args) => Some(&mut args.connection),
            Self::Monitor(args) => Some(&mut args.connection),
            Self::Diff(args) => Some(&mut args.connection),
            Self::Validate(_)
            | Self::Convert(_)
            | Self::Schema(_)
            | Self::Simulate(_)
            | Self::Doctor(_)
            | Self::Config(_)
            | Self::Man(_)
            | Self::Completions(_)
            | Self::Version(_) => None,
        }
    }
}
