import java.util.Random;
import java.util.concurrent.locks.LockSupport;

/** A server's heap: sessions of which few are in use, and short-lived objects for each request. */
final class Sessions {
    private static final int SESSIONS = 24_000;
    private static final int SESSION_BYTES = 3_000;
    private static final double IN_USE = 0.1;

    public static void main(String[] arguments) {
        final double perSecond = Double.parseDouble(arguments[0]);
        final Random random = new Random(7);
        final byte[][] sessions = new byte[SESSIONS][];
        for (int index = 0; index < SESSIONS; index++) {
            sessions[index] = text(random);
        }
        System.out.println("ready");
        final long period = (long) (1e9 / perSecond);
        long next = System.nanoTime();
        long sum = 0;
        while (true) {
            final boolean rare = random.nextInt(200) == 0;
            final int index = rare ? random.nextInt(SESSIONS) : random.nextInt((int) (SESSIONS * IN_USE));
            final byte[] copy = sessions[index].clone();
            for (final byte value : copy) {
                sum += value;
            }
            // A new session replaces an old one, as after a login.
            if (random.nextInt(20) == 0) {
                sessions[index] = text(random);
            }
            next += period;
            LockSupport.parkNanos(next - System.nanoTime());
            if (sum == Long.MIN_VALUE) {
                System.out.println(sum);
            }
        }
    }

    /** Bytes that shrink to about a third, as text does. */
    private static byte[] text(Random random) {
        final byte[] bytes = new byte[SESSION_BYTES];
        for (int index = 0; index < bytes.length; index += 4) {
            bytes[index] = (byte) ('a' + random.nextInt(16));
        }
        return bytes;
    }
}
