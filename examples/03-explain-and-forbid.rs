//! 3. Asking before building: plans, their reasons, and what `Forbid` refuses.
//!
//! `cargo run -p onebuf-examples --example 03-explain-and-forbid`

use onebuf::{CopyPolicy, Error, Result, fake::FakeConfig};

fn main() -> Result<()> {
    // A fake device beside the real ones, so that this example says the same on every machine. It has
    // memory of its own, as a graphics card does, and nobody has proven any route to it.
    let hub = onebuf::builder().fake(FakeConfig::default()).build()?;
    for missing in hub.unavailable() {
        println!("no {}: {}", missing.api, missing.reason);
    }
    let (host, card) = (hub.host(), hub.device("fake:0")?);

    // What `build` would do, without doing it. Planning is a pure function of what is known.
    let builder = hub.buffer::<f64>(1 << 20).shared_with([&host, &card]);
    let plan = builder.plan()?;
    println!("the plan:\n{}", plan.explain(hub.topology()));

    // The same as data, for other programs.
    println!("as JSON: {}\n", plan.to_json(hub.topology()));

    // `Forbid` refuses what is not known to be free of copies, and says which route was missing.
    match builder.clone().copies(CopyPolicy::Forbid).build() {
        Err(Error::CopyForbidden { route, why }) => println!("refused, {route}: {why}\n"),
        other => panic!("the fake device's memory is its own, yet: {other:?}"),
    }

    // Copies are never silent: this map needs a hand-over that may copy, so the ledger has it.
    let buffer = builder.build()?;
    let queue = card.queue()?;
    drop(buffer.write_on(&queue)?);
    println!("the first element is {}", buffer.map()?[0]);
    println!("{}", hub.ledger());
    Ok(())
}
