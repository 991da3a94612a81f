//! Users who ask for goals of measured applications, on a cluster that is not there: the real broker decides and
//! what it promises is kept, or decides beside runs that really were there, or nobody decides and all share.

mod desk;
mod measured;
mod replay;
mod reserved;
mod sharing;

pub use replay::decided;
pub use reserved::{Speed, reserved};
pub use sharing::{Placement, unreserved};

use keeptime_model::Invalid;
use keeptime_model::application::Application;
use keeptime_model::goal::Goal;
use keeptime_model::name::Name;
use keeptime_model::profile::Profile;
use keeptime_model::topology::Topology;
use keeptime_model::units::{BitsPerSecond, Nanos};

/// A cluster and what was measured of its applications.
#[derive(Debug, Clone)]
pub struct World {
    /// Nodes and links.
    pub topology: Topology,
    /// What of a link may be reserved.
    pub reservable: fn(BitsPerSecond) -> BitsPerSecond,
    /// What users may ask for.
    pub known: Vec<Curves>,
    /// How long a unit takes, in parts of what was measured: 1 on a machine that is as fast as it was then. Whoever
    /// promises knows nothing of it, and runs that are held at what was promised take that.
    pub slowness: f64,
}

/// An application and what was measured of it.
#[derive(Debug, Clone)]
pub struct Curves {
    /// The application.
    pub application: Application,
    /// In company, as on a busy cluster: what promises are made from.
    pub profile: Profile,
    /// With nobody else there, from the greatest bandwidth of `profile` up: it says how much company costs, and what
    /// more bandwidth brings. Without it company costs nothing, and curves go on as they end.
    pub alone: Option<Profile>,
    /// What of its time a run computes while it is launched and ends: then, too, it takes processors from those who share
    /// them with it.
    pub launching: f64,
}

/// A request.
#[derive(Debug, Clone, PartialEq)]
pub struct Asked {
    /// When; none comes before the one before it.
    pub at: Nanos,
    /// For what.
    pub application: Name,
    /// How.
    pub goal: Goal,
    /// How many times what is promised of the time of one (frames, say).
    pub units: u32,
    /// What it takes beside: to be launched and to end.
    pub beside: Nanos,
    /// So long it waits for room where the broker decides; 0 = it is refused at once.
    pub wait: Nanos,
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fate {
    /// The time of a unit that was promised, by who promises.
    pub promised: Option<Nanos>,
    /// The time of a unit that half of the runs are expected to take.
    pub expected: Option<Nanos>,
    /// How long it waited for room until it was promised something; 0 if that was at once.
    pub waited: Option<Nanos>,
    /// The time of a unit; nothing if it was refused, ended at its time limit before all were done, or if decisions
    /// alone were asked for.
    pub unit: Option<Nanos>,
    /// When it ended.
    pub ended: Option<Nanos>,
}

fn seconds_of(seconds: f64) -> Result<Nanos, Invalid> {
    let nanos = Nanos::from_secs_f64(seconds);
    nanos.ok_or_else(|| Invalid::new("time", seconds, "a number of seconds"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape;
    use keeptime_model::application::ApplicationFile;
    use keeptime_model::profile::Conditions;
    use keeptime_model::units::CpuPpm;

    /// Four nodes with 1 Gbit/s and two processors each; `ray` on all of them takes 1 s of computing and
    /// 0.1 s x 1 Gbit/s of exchanging for each unit.
    fn world() -> World {
        let application = Application::from_toml(
            "name = \"ray\"\ncommand = [\"ray\"]\npattern = \"hypercube\"\nnodes = [4]\ncpu = \"20 %\"\n\
             timeout = \"600 s\"\ntime = \"wall\"\n",
        )
        .unwrap();
        let conditions = Conditions {
            link_bits_per_second: BitsPerSecond::from_mbit(1_000),
            process_cpu_ppm: CpuPpm::from_percent(20),
            processor: "any".into(),
            mpi: "any".into(),
            command: vec!["ray".into()],
            program: None,
        };
        let mut profile = Profile::empty(application.name().clone(), conditions, vec![]);
        for mbit in [100u64, 125, 200] {
            let time = Nanos::from_millis(1_000 + 100_000 / mbit);
            profile.record(&Default::default(), 4, BitsPerSecond::from_mbit(mbit), time);
        }
        let known = vec![Curves { application, profile, alone: None, launching: 0.0 }];
        World { topology: star(4), reservable: shape::reservable, known, slowness: 1.0 }
    }

    fn star(count: u32) -> Topology {
        let node =
            |n: u32| format!("{{ name = \"n{n}\", cpu = \"40 %\", address = \"10.0.0.{n}\" }}");
        let link = |n: u32| format!("{{ between = [\"n{n}\", \"s\"], rate = \"1 Gbit/s\" }}");
        let all = |of: &dyn Fn(u32) -> String| (1..=count).map(of).collect::<Vec<_>>().join(", ");
        let topology = Topology::from_toml(&format!(
            "name = \"star\"\nnodes = [{}]\nswitches = [{{ name = \"s\" }}]\nlinks = [{}]\n",
            all(&node),
            all(&link)
        ));
        topology.unwrap()
    }

    fn fewest(world: &World, asked: &[Asked]) -> Result<Vec<Fate>, Invalid> {
        unreserved(world, asked, Placement::Fewest)
    }

    fn asked(at: u64, within: u64) -> Asked {
        Asked {
            at: Nanos::from_secs(at),
            application: "ray".parse().unwrap(),
            goal: Goal { within: Some(Nanos::from_millis(within)), ..Goal::default() },
            units: 10,
            beside: Nanos::from_secs(1),
            wait: Nanos::default(),
        }
    }

    fn patient(at: u64, wait: u64) -> Asked {
        Asked { wait: Nanos::from_secs(wait), ..asked(at, 2_000) }
    }

    /// In milliseconds, of each that was admitted.
    fn waited(fates: &[Fate]) -> Vec<Option<u64>> {
        let millis = |nanos: Nanos| (nanos.as_secs_f64() * 1e3).round() as u64;
        fates.iter().map(|fate| fate.waited.map(millis)).collect()
    }

    // Goal: the broker's own decisions, and room again when a run has ended. Two processors a node hold
    // two runs; the third finds none until the first has ended after 1 + 10 x 1.5 x 0.985 s.
    #[test]
    fn what_fits_is_promised_and_kept_and_the_rest_refused() {
        let requests = [asked(0, 2_000), asked(1, 2_000), asked(12, 2_000), asked(16, 2_000)];
        let fates = reserved(&world(), &requests, Speed::Promised).unwrap();
        let promised = |fate: &Fate| fate.promised.map(|time| time.get() / 1_000_000);
        let all: Vec<_> = fates.iter().map(promised).collect();
        assert_eq!(all, [Some(1_500), Some(1_500), None, Some(1_500)], "{fates:?}");
        assert_eq!(fates[0].ended, Some(Nanos::from_millis(15_775)));
        assert_eq!(fates[2], Fate::default());
    }

    // Goal: who has no broker takes a setting that is fast enough, if there is one. Method: a unit of `ray` on four nodes takes
    // 1.1 s, and on two, which the profile tells first, 2.1 s.
    #[test]
    fn without_a_broker_users_take_what_would_be_fast_enough() {
        let mut world = world();
        let Curves { application, profile, .. } = &mut world.known[0];
        let file = ApplicationFile::from(application.clone());
        let file = ApplicationFile { nodes: [2, 4].into(), ..file };
        *application = Application::try_from(file).unwrap();
        let mut both =
            Profile::empty(application.name().clone(), profile.conditions.clone(), vec![]);
        for mbit in [100_u64, 125, 200] {
            for (nodes, alone) in [(2, 2_000), (4, 1_000)] {
                let time = Nanos::from_millis(alone + 100_000 / mbit);
                both.record(&Default::default(), nodes, BitsPerSecond::from_mbit(mbit), time);
            }
        }
        *profile = both;
        let unit = |within| {
            let fates = fewest(&world, &[asked(0, within)]).unwrap();
            (fates[0].unit.unwrap().as_secs_f64() * 10.0).round() / 10.0
        };
        assert_eq!([3_000, 2_000, 500].map(unit), [2.1, 1.1, 2.1]);
    }

    // Goal: a run that takes longer than its reservation is ended there, as a real one is, and others have its room.
    // Method: two runs of 1,000 units take about 1,500 s, and their reservations 600; others ask before and after that. Where
    // runs are said to have been there for longer, their reservations end all the same.
    #[test]
    fn a_run_is_ended_at_its_time_limit() {
        let long = Asked { units: 1_000, ..asked(0, 2_000) };
        let later = [599, 601, 701].map(|at| asked(at, 2_000));
        let requests = [vec![long; 2], later.to_vec()].concat();
        for speed in [Speed::Promised, Speed::Spare] {
            let fates = reserved(&world(), &requests, speed).unwrap();
            let limit = Some(Nanos::from_secs(600));
            assert_eq!([fates[0].ended, fates[1].ended], [limit; 2], "{fates:?}");
            assert_eq!([fates[0].unit, fates[1].unit], [None; 2], "{fates:?}");
            assert!(fates[0].promised.is_some() && fates[2].promised.is_none(), "{fates:?}");
            assert!(fates[3].unit.is_some(), "{fates:?}");
        }
        let until = [700, 700, 0, 700, 710].map(|end| (end > 0).then(|| Nanos::from_secs(end)));
        let fates = decided(&world(), &requests, &until).unwrap();
        let promised: Vec<_> = fates.iter().map(|fate| fate.promised.is_some()).collect();
        assert_eq!(promised, [true, true, false, true, true]);
    }

    // Goal: who waits is granted when a run has ended, and begins then; who would have to wait longer than it may is
    // refused, and so is who does not wait. Method: two runs end after 15.775 and 16.775 s; the third request may wait
    // for that, the fourth waits 2 s, which is not enough, the fifth comes when the third has what was free.
    #[test]
    fn who_waits_is_granted_when_there_is_room_and_begins_then() {
        let requests =
            [asked(0, 2_000), asked(1, 2_000), patient(12, 10), patient(13, 2), asked(16, 2_000)];
        let fates = reserved(&world(), &requests, Speed::Promised).unwrap();
        assert_eq!(waited(&fates), [Some(0), Some(0), Some(3_775), None, None], "{fates:?}");
        let third = fates[2];
        assert_eq!(third.promised, fates[0].promised);
        let began = Nanos::from_millis(15_775 + 1_000);
        let took = third.ended.unwrap().saturating_sub(began).get();
        assert!(took.abs_diff(10 * third.unit.unwrap().get()) < 1_000, "{third:?}");
        assert!(took.abs_diff(Nanos::from_millis(14_775).get()) < 1_000, "{third:?}");
        assert_eq!(fates[3..], [Fate::default(); 2]);
    }

    // Goal: when the last request has come, who still waits is granted or refused all the same. Method: the third has
    // room after 3.775 s, or has waited for 3 s in vain.
    #[test]
    fn who_waits_when_nobody_comes_any_more_is_decided() {
        for (wait, expected) in [(4, Some(3_775)), (3, None)] {
            let requests = [asked(0, 2_000), asked(1, 2_000), patient(12, wait)];
            let fates = reserved(&world(), &requests, Speed::Promised).unwrap();
            assert_eq!(waited(&fates), [Some(0), Some(0), expected], "{fates:?}");
        }
    }

    // Alone, each flow has all that can be reserved of a link, 900 Mbit/s; of two, each has half of what is left
    // beside 400 for both flows of both.
    #[test]
    fn with_what_is_spare_a_run_is_as_fast_as_the_links_let_it() {
        let seconds = |fate: &Fate| fate.unit.unwrap().as_secs_f64();
        let alone = reserved(&world(), &[asked(0, 2_000)], Speed::Spare).unwrap();
        assert!((seconds(&alone[0]) - (1.0 + 100.0 / 900.0)).abs() < 0.01, "{alone:?}");
        let two = reserved(&world(), &[asked(0, 2_000), asked(0, 2_000)], Speed::Spare).unwrap();
        assert!((seconds(&two[0]) - (1.0 + 100.0 / 225.0)).abs() < 0.01, "{two:?}");
        assert_eq!(two[0].promised, Some(Nanos::from_millis(1_500)));
        let third = [asked(0, 2_000), asked(0, 2_000), asked(15, 2_000)];
        let fates = reserved(&world(), &third, Speed::Spare).unwrap();
        assert!(fates[2].promised.is_none(), "both still run: {fates:?}");
    }

    // Goal: what was measured alone says what company costs and what more bandwidth brings. Method: alone a unit takes
    // 1.2 s with 200 Mbit/s (1.5 in company) and 1.0 with 400 or more; one run by itself, then two together, which have 225.
    #[test]
    fn who_is_alone_is_as_fast_as_was_measured_alone() {
        let mut world = world();
        let Curves { profile, alone, .. } = &mut world.known[0];
        let mut measured = Profile { curves: vec![], ..profile.clone() };
        for (mbit, millis) in [(200, 1_200), (400, 1_000)] {
            let (rate, time) = (BitsPerSecond::from_mbit(mbit), Nanos::from_millis(millis));
            measured.record(&Default::default(), 4, rate, time);
        }
        *alone = Some(measured);
        let seconds = |fate: &Fate| fate.unit.unwrap().as_secs_f64();
        let one = reserved(&world, &[asked(0, 2_000)], Speed::Spare).unwrap();
        assert!((seconds(&one[0]) - 1.0).abs() < 0.01, "{one:?}");
        let two = reserved(&world, &[asked(0, 2_000), asked(0, 2_000)], Speed::Spare).unwrap();
        let between = 1.0 + 0.2 * (1.0 / 225.0 - 1.0 / 400.0) / (1.0 / 200.0 - 1.0 / 400.0);
        assert!((seconds(&two[0]) - 1.5 * between / 1.2).abs() < 0.01, "{two:?}");
        assert_eq!(two[0].promised, one[0].promised, "promises know nothing of it");
    }

    // Goal: what is decided depends on who was there, and on no other decision. Method: two processors a node hold two
    // runs; the third and the fourth request come after 12 and 16 s, when runs had ended or not.
    #[test]
    fn decisions_are_made_beside_the_runs_that_were_there() {
        let requests = [asked(0, 2_000), asked(1, 2_000), asked(12, 2_000), asked(16, 2_000)];
        let until =
            |ends: [u64; 4]| ends.map(|seconds| (seconds > 0).then(|| Nanos::from_secs(seconds)));
        let admitted = |ends: [u64; 4]| {
            let fates = decided(&world(), &requests, &until(ends)).unwrap();
            fates.iter().map(|fate| fate.promised.is_some()).collect::<Vec<_>>()
        };
        assert_eq!(admitted([15, 17, 0, 30]), [true, true, false, true]);
        assert_eq!(admitted([11, 17, 20, 0]), [true, true, true, false]);
        assert_eq!(admitted([12, 17, 0, 30]), [true; 4], "the third was refused there, and leaves");
        assert_eq!(admitted([15, 17, 30, 30]), [true, true, false, true], "the third is missing");

        let fates = decided(&world(), &requests, &until([11, 17, 20, 0])).unwrap();
        let first = Fate { ended: Some(Nanos::from_secs(11)), ..fates[0] };
        assert_eq!((fates[0], fates[3]), (first, Fate::default()));
        assert_eq!(first.promised, Some(Nanos::from_millis(1_500)));
        assert_eq!(decided(&world(), &requests, &[]).unwrap_err().field, "held_until");
    }

    // Goal: who waits has room when a run that was there had ended, and holds that until its own run there had, at a
    // time of the clock. Method: as above; the third waits for the end of the first at 15 s, the fourth for that of the
    // second at 17, when nobody asks any more. Where it is 19, the fourth has waited in vain.
    #[test]
    fn who_waits_is_decided_beside_the_runs_that_were_there() {
        let requests = [asked(0, 2_000), asked(1, 2_000), patient(12, 10), patient(16, 2)];
        let until = |seconds| Some(Nanos::from_secs(seconds));
        let decided = |second| {
            decided(&world(), &requests, &[until(15), until(second), until(30), None]).unwrap()
        };
        let fates = decided(17);
        assert_eq!(waited(&fates), [Some(0), Some(0), Some(3_000), Some(1_000)], "{fates:?}");
        assert_eq!((fates[2].ended, fates[3].ended), (until(30), None));
        assert_eq!(waited(&decided(19)), [Some(0), Some(0), Some(3_000), None]);
    }

    // Goal: on a slower machine runs take longer, with a broker and without, and are promised the same.
    #[test]
    fn how_fast_the_machine_is_changes_runs_and_no_promise() {
        let slow = World { slowness: 1.25, ..world() };
        let one = [asked(0, 2_000)];
        let times = |fates: Vec<Fate>| (fates[0].unit.unwrap().as_secs_f64(), fates[0].promised);
        let ((usual, promised), (longer, same)) = (
            times(reserved(&world(), &one, Speed::Spare).unwrap()),
            times(reserved(&slow, &one, Speed::Spare).unwrap()),
        );
        assert!((longer / usual - 1.25).abs() < 0.01, "{usual} {longer}");
        assert_eq!(promised, same);
        let ((usual, _), (longer, _)) =
            (times(fewest(&world(), &one).unwrap()), times(fewest(&slow, &one).unwrap()));
        assert!((longer / usual - 1.25).abs() < 0.01, "{usual} {longer}");
        for slowness in [0.0, f64::NAN] {
            let world = World { slowness, ..world() };
            assert_eq!(fewest(&world, &one).unwrap_err().field, "slowness");
        }
    }

    #[test]
    fn who_is_alone_has_all_links_and_three_share_two_processors() {
        let alone = fewest(&world(), &[asked(0, 2_000)]).unwrap();
        let near = |time: Option<Nanos>, millis| {
            time.is_some_and(|time| time.get().abs_diff(Nanos::from_millis(millis).get()) < 1_000)
        };
        assert!(near(alone[0].unit, 1_100) && near(alone[0].ended, 12_000), "{alone:?}");
        let crowded = fewest(&world(), &vec![asked(0, 2_000); 6]).unwrap();
        let unit = crowded[0].unit.unwrap();
        assert!(unit > Nanos::from_millis(2_700) && unit < Nanos::from_millis(3_600), "{unit}");
        // One that comes when they are over is alone again.
        let later = [vec![asked(0, 2_000); 3], vec![asked(1_000, 2_000)]].concat();
        assert_eq!(fewest(&world(), &later).unwrap()[3].unit, alone[0].unit);
    }

    // Goal: programs share from when they begin, in whatever order they were asked for. Method: the same two, once asked
    // for in the order in which they begin, and once the other way round.
    #[test]
    fn who_is_launched_slowly_begins_after_who_came_later() {
        let begins =
            |at: u64, after: u64| Asked { beside: Nanos::from_secs(after), ..asked(at, 2_000) };
        let slow_first = fewest(&world(), &[begins(0, 6), begins(1, 1)]).unwrap();
        let in_order = fewest(&world(), &[begins(1, 1), begins(1, 5)]).unwrap();
        let apart = |one: &Fate, other: &Fate| {
            one.ended.unwrap().get().abs_diff(other.ended.unwrap().get())
        };
        assert!(apart(&slow_first[0], &in_order[1]) < 1_000, "{slow_first:?} {in_order:?}");
        assert!(apart(&slow_first[1], &in_order[0]) < 1_000, "{slow_first:?} {in_order:?}");
        assert!(slow_first[1].ended < slow_first[0].ended);
    }

    // Goal: who is launched takes processors from those who are there, and is launched later for it; where launching
    // computes nothing, neither. Method: two processors; four runs begin launching together for a second, of which they
    // compute half or nothing, and one that computes all the time is alone.
    #[test]
    fn who_is_launched_needs_processors() {
        let of = |launching, requests: &[Asked]| {
            let mut world = world();
            world.known[0].launching = launching;
            fewest(&world, requests).unwrap()
        };
        let begun = |fate: &Fate| {
            let units = 10.0 * fate.unit.unwrap().as_secs_f64();
            fate.ended.unwrap().as_secs_f64() - units
        };
        let four = vec![asked(0, 2_000); 4];
        let [none, half, all] = [0.0, 0.5, 1.0].map(|part| begun(&of(part, &four)[0]));
        assert!((none - 1.0).abs() < 1e-6 && (all - 2.0).abs() < 1e-6, "{none} {all}");
        // It computes for t and for 0.5 s not: t = 0.5 x (1 + 3 t / (t + 0.5)) / 2.
        let expected = (1.0 + 3f64.sqrt()) / 4.0 + 0.5;
        assert!((half - expected).abs() < 1e-6, "{half} {expected}");
        let alone = of(1.0, &four[..1]);
        assert_eq!(alone, of(0.0, &four[..1]));

        // Two that draw, and two that are launched beside them when they have begun.
        let late = [asked(0, 2_000), asked(0, 2_000), asked(3, 2_000), asked(3, 2_000)];
        let [none, all] = [0.0, 1.0].map(|part| of(part, &late)[0].unit.unwrap());
        assert!(all > none, "{none} {all}");
        let mut world = world();
        for launching in [-0.1, 1.1, f64::NAN] {
            world.known[0].launching = launching;
            assert_eq!(fewest(&world, &four).unwrap_err().field, "launching");
        }
    }

    // Goal: who shares with nobody is as fast as was measured alone, whatever it took in company. Method: 1.1 s with all of a
    // link by the curve in company, and 0.9 s alone, with the most that was measured.
    #[test]
    fn without_a_broker_too_who_is_alone_is_as_fast_as_was_measured_alone() {
        let mut world = world();
        let mut measured = Profile { curves: vec![], ..world.known[0].profile.clone() };
        for (mbit, millis) in [(200, 1_200), (400, 900)] {
            let (rate, time) = (BitsPerSecond::from_mbit(mbit), Nanos::from_millis(millis));
            measured.record(&Default::default(), 4, rate, time);
        }
        world.known[0].alone = Some(measured);
        let one = fewest(&world, &[asked(0, 2_000)]).unwrap();
        let off = one[0].unit.unwrap().get().abs_diff(Nanos::from_millis(900).get());
        assert!(off < 1_000, "{one:?}");
    }

    // Goal: who sees all nodes gives each run a part that is free; by chance some meet though another part is free, and
    // the same seed has the same. Method: two runs at once on eight nodes, each on four: of 200 seeds half.
    #[test]
    fn by_chance_runs_meet_that_need_not() {
        let world = World { topology: star(8), ..world() };
        let both = vec![asked(0, 2_000); 2];
        let slower = |placement| {
            let fates = unreserved(&world, &both, placement).unwrap();
            assert_eq!(fates, unreserved(&world, &both, placement).unwrap());
            fates.iter().all(|fate| fate.unit.unwrap() > Nanos::from_millis(1_101))
        };
        assert!(!slower(Placement::Fewest));
        let met = (0..200).filter(|seed| slower(Placement::Chance(*seed))).count();
        assert!((70..=130).contains(&met), "{met}");
    }

    #[test]
    fn what_is_not_known_is_named() {
        let other = Asked { application: "other".parse().unwrap(), ..asked(0, 2_000) };
        assert_eq!(
            fewest(&world(), std::slice::from_ref(&other)).unwrap_err().field,
            "application"
        );
        assert!(reserved(&world(), &[other], Speed::Promised).is_err());
    }
}
