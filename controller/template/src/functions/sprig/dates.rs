//! Times of sprig.

use jiff::SignedDuration;

use super::super::{arguments, row, time};
use crate::{
    context::Context,
    error::{Fault, Outcome},
    function::{Function, Group::Sprig},
    moment::Moment,
    value::{Struct, Value},
};

pub(super) static TABLE: &[Function] = &[
    row(Sprig, "sprig_mustDateModify", (2, 2), modify),
    row(Sprig, "sprig_mustToDate", (2, 2), |context, values| {
        let moment =
            read(context, values)?.ok_or_else(|| Fault::new("the text is no time in this layout"))?;
        value(context, moment)
    }),
    row(Sprig, "sprig_must_date_modify", (2, 2), modify),
    row(Sprig, "sprig_toDate", (2, 2), |context, values| {
        let moment = read(context, values)?.unwrap_or_else(Moment::zero);
        value(context, moment)
    }),
    row(Sprig, "sprig_unixEpoch", (1, 1), |context, values| {
        let seconds = seconds(moment(&values[0])?);
        context.text(seconds.to_string())
    }),
];

fn read(context: &mut Context<'_>, values: &[Value]) -> Outcome<Option<Moment>> {
    let (layout, text) = (arguments::string(&values[0])?, arguments::string(&values[1])?);
    // Each character is compared with all elements of layouts.
    context.charge(layout.len().saturating_mul(8) + text.len())?;
    Ok(time::parse(&layout, &text))
}

fn moment(value: &Value) -> Outcome<&Moment> {
    let moment = if let Value::Struct(object) = value { object.time.as_deref() } else { None };
    moment.ok_or_else(|| Fault::new(format!("expected time.Time; got {}", value.type_name())))
}

fn modify(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let text = arguments::string(&values[0])?;
    let nanos = super::basics::go_duration(&text).ok_or_else(|| Fault::new("invalid duration"))?;
    let nanos = if text.starts_with('-') { -nanos } else { nanos };
    let before = moment(&values[1])?;
    let outside = || Fault::new("the time is out of range");
    let length = i64::try_from(nanos).map(SignedDuration::from_nanos).map_err(|_| outside())?;
    let civil = before.civil.checked_add(length).map_err(|_| outside())?;
    value(context, Moment { civil, ..before.clone() })
}

/// Rounded down, as in Go.
fn seconds(moment: &Moment) -> i64 {
    let since = moment.since_epoch();
    since.as_secs() - i64::from(since.subsec_nanos() < 0)
}

fn value(context: &mut Context<'_>, moment: Moment) -> Outcome<Value> {
    let civil = moment.civil;
    let mut name = |type_name: &'static str, format: &str| {
        let shown = Some(civil.strftime(format).to_string().into());
        context.structure(Struct { type_name, fields: Vec::new(), shown, time: None })
    };
    let (month, weekday) = (name("time.Month", "%B")?, name("time.Weekday", "%A")?);
    let int = |number: i64| Value::Int(number);
    let millis = i64::try_from(moment.since_epoch().as_nanos().div_euclid(1_000_000)).unwrap_or_default();
    let fields = vec![
        ("Year", int(civil.year().into())),
        ("Month", month),
        ("Day", int(civil.day().into())),
        ("Weekday", weekday),
        ("YearDay", int(civil.day_of_year().into())),
        ("Hour", int(civil.hour().into())),
        ("Minute", int(civil.minute().into())),
        ("Second", int(civil.second().into())),
        ("Nanosecond", int(civil.subsec_nanosecond().into())),
        ("Unix", Value::Int64(seconds(&moment))),
        ("UnixMilli", Value::Int64(millis)),
        ("IsZero", Value::Bool(moment.is_zero())),
    ];
    let shown = Some(time::format(time::SHOWN, &moment).into());
    context.structure(Struct { type_name: "time.Time", fields, shown, time: Some(Box::new(moment)) })
}
