//! 3. Plans before allocation: how to read a plan, and what `Forbid` refuses.
//!
//! `cargo run -p onebuf-examples --example 03-explain-and-forbid`

use onebuf::{CopyPolicy, Error, Result, fake::FakeConfig};

fn main() -> Result<()> {
    // A fake device beside the real ones gives the same output on every machine. Like a discrete GPU
    // it has its own memory, and no route to it is proven.
    let hub = onebuf::builder().fake(FakeConfig::default()).build()?;
    for missing in hub.unavailable() {
        println!("no {}: {}", missing.api, missing.reason);
    }
    let (host, card) = (hub.host(), hub.device("fake:0")?);

    // `plan` returns what `build` would do, without allocating. Planning is a pure function.
    let builder = hub.buffer::<f64>(1 << 20).shared_with([&host, &card]);
    let plan = builder.plan()?;
    println!("the plan:\n{}", plan.explain(hub.topology()));

    // The plan as JSON, for other programs.
    println!("as JSON: {}\n", plan.to_json(hub.topology()));

    // `Forbid` refuses routes that may copy, and the error names the route that is missing.
    match builder.clone().copies(CopyPolicy::Forbid).build() {
        Err(Error::CopyForbidden { route, why }) => println!("refused, {route}: {why}\n"),
        other => panic!("the fake device's memory is its own, yet: {other:?}"),
    }

    // Copies are never silent: this map needs a hand-over that may copy, and the ledger records it.
    let buffer = builder.build()?;
    let queue = card.queue()?;
    drop(buffer.write_on(&queue)?);
    println!("the first element is {}", buffer.map()?[0]);
    println!("{}", hub.ledger());
    Ok(())
}
