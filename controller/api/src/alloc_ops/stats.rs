//! The present resource usage of an allocation's tasks, and of all tasks for metrics.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::{StreamExt, future::join_all, stream};
use herdlet_agent::telemetry::Measured;
use herdlet_api_types::{task::TaskStatus, view::AllocView};
use herdlet_driver::Usage;
use serde_json::{Map, Value, json};

use super::{AllocOps, error::ApiResult, target::TaskTarget};

/// How long one measurement may take; a task that can't be measured in time is left out.
const MEASURE_MAX: Duration = Duration::from_secs(3);
/// Concurrent measurements: each occupies a thread for a moment.
const MEASURED_AT_ONCE: usize = 16;

impl AllocOps {
    /// The usage of an allocation, or of one of its tasks: Nomad's `AllocResourceUsage`.
    pub async fn usage(&self, alloc: &AllocView, task: &str) -> ApiResult<Value> {
        let mut targets = Vec::new();
        if task.is_empty() {
            let running = alloc.tasks.iter().filter(|task| task.state == TaskStatus::Running);
            targets.extend(running.filter_map(|task| self.task(alloc, &task.name).ok()));
        } else {
            targets.push(self.task(alloc, task)?);
        }
        let measured: BTreeMap<String, Usage> =
            join_all(targets.iter().map(measure)).await.into_iter().flatten().collect();
        let at = measured.values().map(|usage| usage.at.0).max().unwrap_or_default();
        let all: Vec<&Usage> = measured.values().collect();
        let shown = |usages: &[&Usage]| to_json(usages, self.core_mhz);
        let tasks: Map<String, Value> = measured
            .iter()
            .map(|(name, usage)| {
                let of_task =
                    json!({ "ResourceUsage": shown(&[usage]), "Timestamp": usage.at.0, "Pids": null });
                (name.clone(), of_task)
            })
            .collect();
        Ok(json!({ "ResourceUsage": shown(&all), "Tasks": tasks, "Timestamp": at }))
    }
}

/// The usage of all running tasks of the agent.
pub(crate) async fn measure_all(reach: &AllocOps) -> Vec<Measured> {
    let targets: Vec<(Arc<AllocView>, TaskTarget)> = reach
        .model
        .allocs()
        .into_iter()
        .flat_map(|alloc| {
            let running = alloc.tasks.iter().filter(|task| task.state == TaskStatus::Running);
            let targets: Vec<_> = running.filter_map(|task| reach.task(&alloc, &task.name).ok()).collect();
            targets.into_iter().map(move |target| (Arc::clone(&alloc), target))
        })
        .collect();
    let measured = targets.into_iter().map(|(alloc, target)| async move {
        let (_, usage) = measure(&target).await?;
        Some(Measured { alloc, attempt: target.attempt, usage })
    });
    let found: Vec<_> = stream::iter(measured).buffered(MEASURED_AT_ONCE).collect().await;
    found.into_iter().flatten().collect()
}

async fn measure(target: &TaskTarget) -> Option<(String, Usage)> {
    let measuring = async {
        let mut samples = target.driver.stats(&target.attempt, Duration::from_secs(1)).await.ok()?;
        samples.next().await?.ok()
    };
    let usage = tokio::time::timeout(MEASURE_MAX, measuring).await.ok()??;
    Some((target.task.name.to_string(), usage))
}

/// The sum of the measurements, in Nomad's form. A value that no driver measured is 0 and not listed in `Measured`.
fn to_json(usages: &[&Usage], core_mhz: u64) -> Value {
    let sum = |get: &dyn Fn(&Usage) -> Option<u64>| {
        usages.iter().filter_map(|usage| get(usage)).reduce(|a, b| a + b)
    };
    let memory = [
        ("RSS", "RSS", sum(&|usage| usage.memory.rss)),
        ("Cache", "Cache", sum(&|usage| usage.memory.cache)),
        ("Swap", "Swap", sum(&|usage| usage.memory.swap)),
        ("Usage", "Usage", sum(&|usage| usage.memory.usage)),
        ("MaxUsage", "Max Usage", sum(&|usage| usage.memory.usage_max)),
        ("KernelUsage", "Kernel Usage", sum(&|usage| usage.memory.kernel)),
        ("KernelMaxUsage", "Kernel Max Usage", None),
    ];
    let cpu = [
        ("ThrottledPeriods", "Throttled Periods", sum(&|usage| usage.cpu.throttled_periods)),
        ("ThrottledTime", "Throttled Time", sum(&|usage| usage.cpu.throttled_ns)),
    ];
    let mut cpu = measured(&cpu);
    let system: f64 = usages.iter().map(|usage| usage.cpu.system_percent).sum();
    let user: f64 = usages.iter().map(|usage| usage.cpu.user_percent).sum();
    let percent = system + user;
    cpu.insert("SystemMode".to_owned(), system.into());
    cpu.insert("UserMode".to_owned(), user.into());
    cpu.insert("Percent".to_owned(), percent.into());
    cpu.insert("TotalTicks".to_owned(), (percent / 100.0 * mhz(core_mhz)).into());
    if let Some(Value::Array(names)) = cpu.get_mut("Measured") {
        names.extend(["System Mode".into(), "User Mode".into(), "Percent".into()]);
    }
    let mut memory = measured(&memory);
    // Not listed in `Measured`: stock command lines print a column for each name, and don't know this one.
    memory.insert("MappedFile".to_owned(), sum(&|usage| usage.memory.mapped_file).unwrap_or_default().into());
    json!({ "MemoryStats": memory, "CpuStats": cpu, "DeviceStats": [] })
}

fn measured(fields: &[(&str, &str, Option<u64>)]) -> Map<String, Value> {
    let mut shown: Map<String, Value> = fields
        .iter()
        .map(|(field, _, value)| ((*field).to_owned(), value.unwrap_or_default().into()))
        .collect();
    let names = fields.iter().filter(|(_, _, value)| value.is_some()).map(|(_, name, _)| Value::from(*name));
    shown.insert("Measured".to_owned(), names.collect());
    shown
}

#[expect(clippy::cast_precision_loss, reason = "no processor has 2⁵² MHz")]
fn mhz(mhz: u64) -> f64 {
    mhz as f64
}
