//! The driver `java`: runs a class or a jar file as the driver `exec` runs a program, in namespaces and a root of its own.
//!
//! In: a task's `config`, the Java of this machine. Out: the command of the virtual machine. The Java is found by the agent's
//! `PATH`, as in Nomad, and has to be among the parts of the machine that tasks see.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use herdlet_api_types::{
    driver::{ConfigCheck, ConfigFinding, DriverInfo, ExecOptions, JAVA, Planned, Verdict},
    manifest::{
        Text,
        driver::{ExecConfig, JavaConfig},
    },
};
use herdlet_driver::{DriverError, DriverResult, Fingerprint, Health, read_config};
use herdlet_rootfs::root::Entry;

use crate::{
    engine::{Constancy, Effort, Engine, Setup},
    exec::{self, InvalidOptions, IsolatedDriver, Policy, Roots, Variant, warn_of_missing_sources},
    installed::{Programs, Versions},
};

/// The program.
const PROGRAM: &str = "java";

/// What to do where there is no Java.
const INSTALL: &str =
    "install one, such as the package default-jre-headless; it is found within half a minute";

/// Creates the driver. Must be called within a tokio runtime.
///
/// # Errors
/// If an option is invalid.
pub fn driver(
    setup: Setup,
    options: &ExecOptions,
    (roots, programs): (Arc<Roots>, Programs),
) -> Result<Engine, InvalidOptions> {
    warn_of_missing_sources(JAVA, options);
    let variant = Java { versions: programs.versions(PROGRAM), programs };
    let translate = IsolatedDriver { policy: Policy::new(JAVA, options)?, roots, variant };
    Ok(Engine::new(DriverInfo { check: Some(ConfigCheck(findings)), ..DriverInfo::java() }, translate, setup))
}

fn missing() -> String {
    format!("there is no Java in the agent's PATH; {INSTALL}")
}

/// What every agent refuses in a task's `config`.
pub fn findings(planned: &Planned<'_>) -> Vec<ConfigFinding> {
    // Names and types are the schema's matter.
    let Ok(config) = read_config::<JavaConfig>(planned.config) else { return Vec::new() };
    let finding = |field: &str, message: &str, verdict: Verdict| ConfigFinding {
        field: field.to_owned(),
        message: message.to_owned(),
        verdict,
    };
    let is_given = |text: &Option<String>| text.as_deref().is_some_and(|text| !text.is_empty());
    let mut found = match arguments(&config) {
        Err((field, why)) => vec![finding(field, why, Verdict::Refused)],
        Ok(_) if is_given(&config.jar_path) && is_given(&config.class) => {
            let why =
                "is no class to run: as in Nomad, beside `jar_path` it is the first argument of the program";
            vec![finding("class", why, Verdict::NoEffect)]
        }
        Ok(_) => Vec::new(),
    };
    found.extend(exec::unknown_in(&surroundings(config)));
    found
}

/// The Java of this machine.
#[derive(Debug)]
struct Java {
    programs: Programs,
    versions: Versions,
}

impl Variant for Java {
    fn driver(&self) -> &'static str {
        JAVA
    }

    fn program(&self, config: &serde_json::Value, seen: &[Entry]) -> DriverResult<ExecConfig> {
        let config = read_config::<JavaConfig>(config)?;
        let args = arguments(&config)
            .map_err(|(field, why)| DriverError::fatal(format!("parse config: {field}: {why}")))?;
        let (_, command) = self.find(seen).map_err(DriverError::no_program)?;
        Ok(ExecConfig { command, args, ..surroundings(config) })
    }

    fn surroundings(&self, config: &serde_json::Value) -> DriverResult<ExecConfig> {
        read_config(config).map(surroundings)
    }

    fn fingerprint(&self, seen: &[Entry], effort: Effort) -> Fingerprint {
        let without = |health, description| Fingerprint { health, description, attributes: BTreeMap::new() };
        let java = match self.find(seen) {
            Ok((java, _)) => java,
            Err(why) => return without(Health::Undetected, why),
        };
        let healthy = without(Health::Healthy, "Healthy".to_owned());
        match effort {
            Effort::Quick => {
                let known = self.versions.known(&java).unwrap_or_default();
                Fingerprint { attributes: attributes(&known), ..healthy }
            }
            Effort::Thorough => match self.versions.query(&java, "-version") {
                Ok(output) => Fingerprint { attributes: attributes(&output), ..healthy },
                Err(why) => without(Health::Unhealthy, format!("the version of Java is unknown: {why}")),
            },
        }
    }

    fn constancy(&self) -> Constancy {
        Constancy::Changes
    }
}

impl Java {
    /// The program's path on the machine, and in the roots of tasks.
    ///
    /// # Errors
    /// Why there is none, and what to do.
    fn find(&self, seen: &[Entry]) -> Result<(PathBuf, String), String> {
        let Some(java) = self.programs.locate(PROGRAM) else {
            return Err(missing());
        };
        match in_root(&java, seen) {
            Some(path) => Ok((java, path)),
            None => Err(format!(
                "Java is {}, which tasks do not see; add its directory to `drivers.java.chroot_env` of the agent's config",
                java.display()
            )),
        }
    }
}

/// Where a file of the machine is in the roots of tasks.
fn in_root(path: &Path, seen: &[Entry]) -> Option<String> {
    let place = |entry: &Entry| {
        let source = fs::canonicalize(&entry.source).ok()?;
        let below = path.strip_prefix(source).ok()?;
        Some(Path::new("/").join(&entry.target).join(below).to_string_lossy().into_owned())
    };
    // One that has the same path there is what links of the machine lead to.
    let same = seen.iter().filter(|entry| path.starts_with(&entry.source)).find_map(place);
    same.or_else(|| seen.iter().find_map(place))
}

/// The arguments of the virtual machine, in Nomad's order; or the key that is wrong, and why.
fn arguments(config: &JavaConfig) -> Result<Vec<Text>, (&'static str, &'static str)> {
    let JavaConfig { jar_path, class, class_path, jvm_options, args, .. } = config;
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let (jar_path, class, class_path) = (given(jar_path), given(class), given(class_path));
    if jar_path.is_none() && class.is_none() {
        return Err(("jar_path", "jar_path or class must be specified"));
    }
    let mut all = jvm_options.clone();
    let mut add = |words: &[&str]| all.extend(words.iter().map(|word| Text((*word).to_owned())));
    if let Some(path) = &class_path {
        add(&["-cp", path]);
    }
    if let Some(path) = &jar_path {
        add(&["-jar", path]);
    }
    if let Some(class) = &class {
        add(&[class]);
    }
    all.extend(args.iter().cloned());
    Ok(all)
}

/// All but the program.
fn surroundings(config: JavaConfig) -> ExecConfig {
    let JavaConfig {
        jar_path: _,
        class: _,
        class_path: _,
        jvm_options: _,
        args: _,
        work_dir,
        pid_mode,
        ipc_mode,
        cap_add,
        cap_drop,
        init,
        no_new_privs,
        pids_limit,
    } = config;
    ExecConfig {
        command: String::new(),
        args: Vec::new(),
        work_dir,
        pid_mode,
        ipc_mode,
        cap_add,
        cap_drop,
        init,
        no_new_privs,
        pids_limit,
    }
}

/// Attributes from the three lines of `java -version`: version, runtime, virtual machine.
fn attributes(output: &str) -> BTreeMap<String, String> {
    let lines: Vec<&str> = output.lines().map(str::trim).collect();
    let Some((at, version)) = lines.iter().enumerate().find_map(|(at, line)| {
        let (_, quoted) = line.split_once("version \"")?;
        Some((at, quoted.split('"').next()?))
    }) else {
        return BTreeMap::new();
    };
    let line = |after: usize| lines.get(at + after).copied().unwrap_or_default();
    let named = [("version", version), ("runtime", line(1)), ("vm", line(2))];
    let known = named.into_iter().filter(|(_, value)| !value.is_empty());
    known.map(|(name, value)| (format!("driver.{JAVA}.{name}"), value.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use herdlet_api_types::{driver::Sharing, job::Resources};
    use serde_json::json;

    use super::*;

    fn words(config: serde_json::Value) -> Vec<String> {
        let config = serde_json::from_value(config).unwrap();
        arguments(&config).unwrap().into_iter().map(|word| word.0).collect()
    }

    #[test]
    fn arguments_are_in_nomads_order() {
        let config = json!({"class": "Main", "class_path": "/local:/alloc", "jvm_options": ["-Xmx9m"], "args": ["a", "b"]});
        assert_eq!(words(config), ["-Xmx9m", "-cp", "/local:/alloc", "Main", "a", "b"]);
        let config = json!({"jar_path": "local/x.jar", "class": "", "args": ["a"]});
        assert_eq!(words(config), ["-jar", "local/x.jar", "a"]);
    }

    #[test]
    fn a_task_without_a_program_is_refused_before_its_start() {
        let found = |config: serde_json::Value| {
            let planned = Planned {
                config: &config,
                resources: &Resources::default(),
                ports: &BTreeSet::new(),
                network: Sharing::Own,
            };
            findings(&planned).into_iter().map(|finding| (finding.field, finding.verdict)).collect::<Vec<_>>()
        };
        let refused = [("jar_path".to_owned(), Verdict::Refused)];
        assert_eq!(found(json!({"args": ["x"]})), refused);
        assert_eq!(found(json!({"class": "", "jar_path": ""})), refused);
        assert_eq!(found(json!({"class": "Main"})), []);
        let both = found(json!({"class": "Main", "jar_path": "x.jar"}));
        assert_eq!(both, [("class".to_owned(), Verdict::NoEffect)]);
        assert_eq!(found(json!({"class": 5})), []);
    }

    #[test]
    fn versions_of_several_vendors_are_read() {
        let of = |text: &str| {
            let found = attributes(text);
            ["version", "runtime", "vm"].map(|name| found.get(&format!("driver.java.{name}")).cloned())
        };
        let some = |text: &str| Some(text.to_owned());
        let debian = "Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version \"17.0.15\" 2025-04-15\nOpenJDK Runtime Environment (build 17.0.15+6-Debian-1deb12u1)\nOpenJDK 64-Bit Server VM (build 17.0.15+6-Debian-1deb12u1, mixed mode, sharing)\n";
        let [version, runtime, vm] = of(debian);
        assert_eq!(version, some("17.0.15"));
        assert_eq!(runtime, some("OpenJDK Runtime Environment (build 17.0.15+6-Debian-1deb12u1)"));
        assert!(vm.unwrap().starts_with("OpenJDK 64-Bit Server VM"));
        let old = "java version \"1.8.0_202\"\r\nJava(TM) SE Runtime Environment (build 1.8.0_202-b08)\r\n";
        let runtime = some("Java(TM) SE Runtime Environment (build 1.8.0_202-b08)");
        assert_eq!(of(old), [some("1.8.0_202"), runtime, None]);
        assert_eq!(of("no such thing"), [None, None, None]);
    }

    #[test]
    fn a_java_outside_the_roots_of_tasks_is_not_detected() {
        let dir = tempfile::tempdir().unwrap();
        let dir = fs::canonicalize(dir.path()).unwrap();
        let java = |search_path: &Path| {
            let programs = Programs::new(search_path.into(), dir.join("kept"));
            Java { versions: programs.versions(PROGRAM), programs }
        };
        let entry = |source: &Path, target: &str| Entry { source: source.to_owned(), target: target.into() };
        let (home, bin) = (dir.join("jdk"), dir.join("jdk/bin"));
        fs::create_dir_all(&bin).unwrap();
        let missing = java(&bin).find(&[]).unwrap_err();
        assert!(missing.contains("default-jre-headless"), "{missing}");
        fs::write(bin.join("java"), "#!/bin/sh\n").unwrap();
        fs::set_permissions(bin.join("java"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let unseen = java(&bin).find(&[entry(Path::new("/usr"), "usr")]).unwrap_err();
        assert!(unseen.contains("drivers.java.chroot_env"), "{unseen}");
        std::os::unix::fs::symlink(&home, dir.join("link")).unwrap();
        for (seen, path) in [
            (entry(&home, "opt/jdk"), "/opt/jdk/bin/java"),
            (entry(&dir.join("link"), "opt/jdk"), "/opt/jdk/bin/java"),
        ] {
            assert_eq!(java(&bin).find(&[seen]).unwrap(), (bin.join("java"), path.to_owned()));
        }
        let found = java(&bin).fingerprint(&[entry(&home, "jdk")], Effort::Quick);
        assert_eq!((found.health, found.attributes.len()), (Health::Healthy, 0));
    }
}
