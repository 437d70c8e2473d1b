//! Who leaves a processor goes on elsewhere and keeps the right to all.

/// The processors that this thread may use.
fn allowed() -> Vec<usize> {
    // SAFETY: the set is alive through the calls, and as large as is said.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &mut set), 0);
        (0..libc::CPU_SETSIZE as usize).filter(|&number| libc::CPU_ISSET(number, &set)).collect()
    }
}

fn use_only(processors: &[usize]) {
    // SAFETY: as above.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        for &number in processors {
            libc::CPU_SET(number, &mut set);
        }
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &set), 0);
    }
}

#[test]
fn a_thread_that_leaves_a_processor_goes_on_elsewhere_and_may_come_back() {
    let all = allowed();
    let [first, _second, ..] = all[..] else {
        eprintln!("skipped: one processor alone");
        return;
    };
    let whole = alcove_sys::Processors::to_give_back().expect("a set");
    // A machine moves a thread by itself now and then, in either direction.
    let elsewhere = |leaves: bool| {
        (0..20)
            .filter(|_| {
                use_only(&[first]);
                use_only(&all);
                if leaves {
                    alcove_sys::leave_processor(0, first, &whole).expect("moved");
                }
                alcove_sys::processor().expect("a number") != first
            })
            .count()
    };
    let (stayed, left) = (elsewhere(false), elsewhere(true));
    assert!(left > stayed, "{left} of 20 that left, {stayed} that did not");
    assert_eq!(allowed(), all);
}

#[test]
fn what_a_thread_is_given_back_keeps_what_was_chosen_for_it_and_nothing_else_to_few() {
    std::thread::spawn(|| {
        let all = allowed();
        let given_back = || alcove_sys::Processors::to_give_back().expect("some").give_to(0).expect("given");
        given_back();
        assert_eq!(allowed(), all);
        use_only(&all[..1]);
        given_back();
        // With one processor alone there is nothing to choose.
        assert_eq!(allowed(), all[..1]);
    })
    .join()
    .expect("joined");
}

#[test]
fn a_thread_with_one_processor_stays_there() {
    std::thread::spawn(|| {
        let [first, ..] = allowed()[..] else { panic!("none") };
        use_only(&[first]);
        let one = alcove_sys::Processors::to_give_back().expect("a set");
        alcove_sys::leave_processor(0, first, &one).expect("nothing to do");
        assert_eq!(allowed(), [first]);
    })
    .join()
    .expect("joined");
}

#[test]
fn a_thread_that_somebody_else_has_leave_just_now_keeps_all() {
    std::thread::spawn(|| {
        let all = allowed();
        let [first, .., last] = all[..] else {
            eprintln!("skipped: one processor alone");
            return;
        };
        let whole = alcove_sys::Processors::to_give_back().expect("a set");
        alcove_sys::Processors::only(last).give_to(0).expect("narrowed");
        alcove_sys::leave_processor(0, first, &whole).expect("moved");
        assert_eq!(allowed(), all);
    })
    .join()
    .expect("joined");
}

#[test]
fn who_is_to_be_given_what_is_not_allowed_any_more_is_given_what_is() {
    std::thread::spawn(|| {
        let all = allowed();
        use_only(&all[..1]);
        // No machine of these tests has so many.
        alcove_sys::Processors::only(libc::CPU_SETSIZE as usize - 1).give_back_to(0).expect("given");
        assert_eq!(allowed(), all);
    })
    .join()
    .expect("joined");
}

#[test]
fn who_is_given_back_processors_while_those_of_its_group_change_has_what_the_group_has_then() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let (root, group) = ("/sys/fs/cgroup/cpuset", format!("/sys/fs/cgroup/cpuset/alcove-sys-{}", std::process::id()));
    let of_all = |name: &str| std::fs::read_to_string(format!("{root}/{name}")).unwrap_or_default();
    let (all, memory) = (of_all("cpuset.cpus"), of_all("cpuset.mems"));
    if all.trim() != "0-1" || std::fs::create_dir(&group).is_err() {
        eprintln!("skipped: no group of processors can be made here, or there are not two");
        return;
    }
    let write = |name: &str, text: &str| std::fs::write(format!("{group}/{name}"), text).expect(name);
    write("cpuset.mems", &memory);
    write("cpuset.cpus", &all);
    let done = AtomicBool::new(false);
    let (refused, left) = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                ["0", "1", "0-1"].iter().for_each(|some| write("cpuset.cpus", some));
            }
        });
        let tried = scope.spawn(|| {
            let whole = alcove_sys::Processors::of_this_thread();
            write("tasks", "0");
            let until = std::time::Instant::now() + std::time::Duration::from_secs(3);
            let mut refused = usize::from(whole.is_err());
            while let Some(whole) = whole.as_ref().ok().filter(|_| std::time::Instant::now() < until) {
                let _ = alcove_sys::processor().and_then(|here| alcove_sys::Processors::only(here).give_to(0));
                refused += usize::from(whole.give_back_to(0).is_err());
            }
            done.store(true, Ordering::Relaxed);
            refused
        });
        let refused = tried.join();
        (refused, std::fs::write(format!("{root}/tasks"), "0"))
    });
    let removed = (0..100).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        std::fs::remove_dir(&group).is_ok()
    });
    assert_eq!(refused.expect("joined"), 0);
    assert!(left.is_ok() && removed, "{group} is left");
}
