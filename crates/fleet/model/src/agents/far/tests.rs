use super::*;

fn of(buckets: [u64; 5]) -> Histogram {
    Histogram::try_from(buckets.to_vec()).unwrap()
}

fn started(cold: &Histogram) -> Far {
    let mut far = Far::default();
    far.period(cold, &of([0; 5]));
    far
}

#[test]
fn what_was_not_accessed_since_it_went_out_grows_older() {
    // A quarter of the pages of age 2 go out; then none is accessed, and others reach that age.
    let mut far = started(&of([0, 0, 400, 0, 0]));
    far.add(1, Pages(100), &of([0, 0, 400, 0, 0]));
    assert_eq!(far.period(&of([0, 0, 0, 400, 0]), &of([0; 5])), of([0; 5]));
    let returned = far.period(&of([0, 0, 800, 0, 400]), &of([0; 5]));
    assert_eq!((returned, far.pages(), far.resident(&of([0, 0, 800, 0, 400]))), (of([0; 5]), Pages(100), of([0, 0, 800, 0, 300])));
    // Accesses at age 2 meet none of them, and a quarter of those at age 4 do.
    let returned = far.period(&of([60, 0, 780, 0, 360]), &of([0, 0, 20, 0, 40]));
    assert_eq!((returned, far.pages()), (of([0, 0, 0, 0, 10]), Pages(90)));
}

#[test]
fn the_order_of_ages_is_kept_where_all_pages_pass_several_buckets_at_once() {
    let mut far = started(&of([0, 100, 300, 0, 0]));
    far.add(1, Pages(30), &of([0, 100, 300, 0, 0]));
    far.period(&of([0, 0, 0, 0, 400]), &of([0; 5]));
    assert_eq!((far.pages(), far.resident(&of([0, 0, 0, 0, 400]))), (Pages(30), of([0, 0, 0, 0, 370])));
    // Memory is freed: the oldest 200 of what were 400 are left, by the order of ages.
    far.period(&of([0, 0, 0, 0, 200]), &of([0; 5]));
    assert_eq!(far.pages(), Pages(15));
}

#[test]
fn parts_of_a_page_return_when_they_are_a_whole_one() {
    let cold = of([0, 0, 0, 0, 1_000]);
    let mut far = started(&cold);
    far.add(3, Pages(250), &cold);
    // One access of these in four is of a far page.
    let returned: u64 = (0..40).map(|_| far.period(&cold, &of([0, 0, 0, 0, 1])).at_or_above(0).0).sum();
    assert!((9..=10).contains(&returned), "{returned}");
    assert_eq!(Pages(250) - far.pages(), Pages(10));
}

#[test]
fn all_of_a_threshold_are_far_whatever_comes_and_goes() {
    let mut far = started(&of([10, 20, 30, 40, 50]));
    far.set_whole(Some(2), &of([10, 20, 30, 40, 50]));
    assert_eq!((far.whole(), far.pages()), (Some(2), Pages(90)));
    // More accesses than there were pages count too.
    assert_eq!(far.period(&of([50, 20, 30, 20, 70]), &of([9, 9, 9, 60, 3])), of([0, 0, 0, 60, 3]));
    assert_eq!(far.pages(), Pages(90));
    far.set_whole(None, &of([50, 20, 30, 20, 70]));
    assert_eq!((far.is_on(), far.pages(), far.whole()), (false, Pages::ZERO, None));
}
