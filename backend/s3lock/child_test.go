package s3lock

const childEnv = "S3LOCK_TEST_CHILD"

func play(role string) {}
