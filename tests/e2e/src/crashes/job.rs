//! The jobs of these lives, and their manifests.
//!
//! In: a random number generator. Out: a job whose tasks all run [`super::work`], identified by a word that
//! no other version has.

use std::path::Path;

use super::work::{self, JobType};
use crate::random::Rng;

/// Whether a job has a task whose driver gives it an address of its own, and fails for a moment while the task runs. Only the driver knows it: an agent that dies before
/// it has stored the result of the start learns it from the next one's inspection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Addressed {
    Yes,
    No,
}

/// The address of such tasks.
pub const ADDRESS: &str = "192.0.2.7";

/// Whether a job's tasks have templates, one of them of a variable, and a token in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Templated {
    Yes,
    No,
}

/// The name of the network that [`super::networks`] makes by a plugin.
pub const CNI: &str = "net";

/// The network of a job's group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkMode {
    Host,
    /// With a port.
    Bridge,
    None,
    /// Of the plugin in [`super::networks`].
    Cni,
}

/// Which networks jobs may have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Networks {
    /// That of the machine.
    #[default]
    Host,
    All,
}

/// How a job's tasks handle the stop signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// They exit.
    Obedient,
    /// They ignore it, and are killed after their `kill_timeout`.
    Deaf,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Work {
    /// The job's name.
    pub name: String,
    pub kind: JobType,
    /// Identifies the processes of this version.
    pub word: String,
    /// Number of allocations.
    pub count: u64,
    /// Its network.
    pub network: NetworkMode,
    tasks: u64,
    manner: Manner,
    addressed: Addressed,
    templated: Templated,
    volume: bool,
}

impl Work {
    /// Returns a random job.
    pub fn random(rng: &mut Rng, name: &str, word: String) -> Self {
        let kind = if rng.one_in(4) { JobType::Batch } else { JobType::Service };
        let manner = if rng.one_in(8) { Manner::Deaf } else { Manner::Obedient };
        let addressed =
            if kind == JobType::Service && rng.one_in(3) { Addressed::Yes } else { Addressed::No };
        let templated = if rng.one_in(3) { Templated::Yes } else { Templated::No };
        Self {
            addressed,
            templated,
            name: name.to_owned(),
            kind,
            word,
            count: 1 + rng.below(3),
            network: NetworkMode::Host,
            tasks: 1 + rng.below(2),
            manner,
            volume: rng.one_in(3),
        }
    }

    /// Returns the same work in a random network.
    #[must_use]
    pub fn connected(self, rng: &mut Rng, networks: Networks) -> Self {
        let network = match networks {
            Networks::Host => return self,
            Networks::All => match rng.below(8) {
                0..3 => NetworkMode::Bridge,
                3 => NetworkMode::None,
                4 => NetworkMode::Cni,
                _ => NetworkMode::Host,
            },
        };
        Self { network, ..self }
    }

    /// Returns the same work with another number of allocations.
    #[must_use]
    pub fn scaled(&self, rng: &mut Rng) -> Self {
        Self { count: 1 + (self.count + rng.below(2)) % 3, ..self.clone() }
    }

    /// Returns a job with very many tasks.
    pub fn many(count: u64, word: String) -> Self {
        let (kind, manner) = (JobType::Service, Manner::Obedient);
        let (addressed, templated) = (Addressed::No, Templated::No);
        let name = "many".to_owned();
        let network = NetworkMode::Host;
        Self { name, kind, word, count, network, tasks: 1, manner, addressed, templated, volume: false }
    }

    /// Returns the places of its tasks: `job.group[index]/task`.
    pub fn places(&self) -> Vec<String> {
        let name = &self.name;
        (0..self.count)
            .flat_map(|index| (0..self.tasks).map(move |task| format!("{name}.g[{index}]/t{task}")))
            .collect()
    }

    /// The path of the variable that its templates read; none without templates.
    pub fn variable(&self) -> Option<String> {
        (self.templated == Templated::Yes).then(|| variable(&self.name))
    }

    /// The service whose instances have the address [`ADDRESS`]; none if it has no such task.
    pub fn addressed_service(&self) -> Option<String> {
        (self.addressed == Addressed::Yes).then(|| format!("{}-m", self.name))
    }

    /// Formats the manifest. `program` calls [`work::run`]; tasks write to `journal`.
    pub fn manifest(&self, program: &Path, journal: &Path) -> String {
        let Self { name, kind, word, count, network, tasks, manner, addressed, templated, volume } = self;
        let mut text = String::new();
        if *volume {
            text.push_str(&format!(
                "apiVersion: herdlet/v1\nkind: Volume\nmetadata: {{name: v-{name}}}\nspec: {{type: host, plugin_id: mkdir}}\n---\n"
            ));
        }
        text.push_str(&format!(
            "apiVersion: herdlet/v1\nkind: Job\nmetadata: {{name: {name}}}\nspec:\n  type: {}\n  groups:\n    - name: g\n      count: {count}\n      restart: {{attempts: 250, interval: 5s, delay: 20ms, mode: delay}}\n",
            kind.as_str()
        ));
        if *volume {
            text.push_str(&format!("      volumes: {{data: {{type: host, source: v-{name}}}}}\n"));
        }
        match network {
            NetworkMode::Host => {}
            NetworkMode::Bridge => text.push_str("      network: {mode: bridge, ports: {http: {to: 80}}}\n"),
            NetworkMode::None => text.push_str("      network: {mode: none}\n"),
            NetworkMode::Cni => text.push_str(&format!("      network: {{mode: cni/{CNI}}}\n")),
        }
        text.push_str("      tasks:\n");
        for task in 0..*tasks {
            let place = format!("${{NOMAD_ALLOC_NAME}}/t{task}");
            let own = [work::ARGUMENT, &journal.display().to_string(), &place, word, kind.as_str()]
                .map(str::to_owned);
            let program = program.display().to_string();
            let (command, arguments) = match manner {
                Manner::Obedient => (program, own.to_vec()),
                Manner::Deaf => {
                    let script = "trap '' INT; exec \"$0\" \"$@\"".to_owned();
                    let mut arguments = vec!["-c".to_owned(), script, program];
                    arguments.extend(own);
                    ("/bin/sh".to_owned(), arguments)
                }
            };
            let arguments = serde_json::to_string(&arguments).expect("arguments are JSON, and so YAML");
            text.push_str(&format!(
                "        - name: t{task}\n          driver: raw_exec\n          kill_timeout: 200ms\n          config: {{command: {command:?}, args: {arguments}}}\n"
            ));
            if *templated == Templated::Yes {
                text.push_str(&templates(name, word));
            }
            if *volume {
                text.push_str("          volume_mounts: [{volume: data, destination: local/data}]\n");
            }
        }
        if *addressed == Addressed::Yes {
            text.push_str(&format!(
                "        - name: m\n          driver: mock\n          config: {{run_for: 240h, plugin_exit_after: 300ms, driver_ip: {ADDRESS}}}\n          services: [{{name: {name}-m, provider: nomad, port: \"80\", address_mode: driver}}]\n"
            ));
        }
        text
    }
}

/// The path of the variable of a job.
pub fn variable(job: &str) -> String {
    format!("nomad/jobs/{job}")
}

/// The files of templates, in a task's directory: the value of the variable, and the word of the version.
pub const VALUE: &str = "local/value";
pub const WORD: &str = "secrets/word";
/// The file of its token.
pub const TOKEN: &str = "secrets/nomad_own.jwt";

/// A variable that does not exist yet is an answer too, so that nothing waits for it.
fn templates(name: &str, word: &str) -> String {
    let path = variable(name);
    let value = format!(
        "{{{{ if nomadVarExists \"{path}\" }}}}{{{{ with nomadVar \"{path}\" }}}}{{{{ .value }}}}{{{{ end }}}}{{{{ end }}}}"
    );
    format!(
        "          identities: [{{name: own, file: true}}]\n          templates:\n            - {{data: '{value}', destination: {VALUE}, change_mode: noop, wait: {{min: 0s, max: 0s}}}}\n            - {{data: '{word} {{{{ env \"NOMAD_TASK_NAME\" }}}}', destination: {WORD}}}\n"
    )
}

/// Returns the word of a job's current version from the API's JSON.
pub fn word_of(job: &serde_json::Value) -> Option<String> {
    let arguments = job["TaskGroups"][0]["Tasks"][0]["Config"]["args"].as_array()?;
    // The arguments end with WORD KIND.
    arguments.get(arguments.len().checked_sub(2)?)?.as_str().map(str::to_owned)
}
